"""Run the public simulator of Gavel on its continuous trace, and print its wall time as JSON; for simulator_speed.py.

It runs in a Python of its own, with numpy, scipy, cvxpy and ECOS, and needs a copy of the artifact's ``scheduler``
folder. What that imports and a simulation does not use is replaced by empty modules, and names that newer versions of
numpy have dropped are put back.
"""

import argparse
import contextlib
import importlib
import json
import os
import sys
import time
import types

import numpy as np

HOUR = 3600.0
UNUSED = ("matrix_completion", "runtime", "runtime.rpc", "grpc", "numa", "psutil", "setproctitle")


def put_back() -> None:
    """Make the artifact importable."""
    for name, kind in (("int", int), ("float", float), ("bool", bool), ("object", object)):
        if name not in vars(np):
            setattr(np, name, kind)
    for name in UNUSED:
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = types.ModuleType(name)
    empty = types.SimpleNamespace()
    vars(sys.modules["runtime.rpc"]).update(scheduler_server=empty, scheduler_client=empty)


def main() -> None:
    """Run one simulation of the artifact, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scheduler", help="the artifact's scheduler folder")
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--rate", type=float, default=4.0, help="jobs per hour")
    parser.add_argument("--window", type=int, nargs=2, default=(4000, 5000), help="jobs that have to end")
    given = parser.parse_args()
    os.chdir(given.scheduler)
    sys.path.insert(0, given.scheduler)
    sys.modules.pop("runtime", None)
    put_back()
    scheduler, utils, ids = (importlib.import_module(name) for name in ("scheduler", "utils", "job_id_pair"))
    policy = utils.get_policy(given.policy, solver="ECOS", seed=0)
    inner, spent = policy.get_allocation, [0.0]

    def timed(*args: object, **more: object) -> object:
        begun = time.perf_counter()
        try:
            return inner(*args, **more)
        finally:
            spent[0] += time.perf_counter() - begun

    policy.get_allocation = timed
    jobs = {ids.JobIdPair(i, None) for i in range(*given.window)}
    kinds = ("v100", "p100", "k80")
    with open(os.devnull, "w") as log, contextlib.redirect_stderr(log), contextlib.redirect_stdout(log):  # noqa: PTH123  as its own scripts do, into a file
        simulated = scheduler.Scheduler(
            policy, throughputs_file="simulation_throughputs.json", seed=0, time_per_iteration=360, simulate=True
        )
        begun, begun_cpu = time.perf_counter(), time.process_time()
        simulated.simulate(
            dict.fromkeys(kinds, 36),
            lam=HOUR / given.rate,
            jobs_to_complete=jobs,
            num_gpus_per_server=dict.fromkeys(kinds, 1),
        )
        wall, cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
        jct = simulated.get_average_jct(jobs)
    found = {"wall": wall, "cpu": cpu, "policy": spent[0], "loop": wall - spent[0], "jct_hours": jct / HOUR}
    print(json.dumps(found), flush=True)
    os._exit(0)  # its threads never end


if __name__ == "__main__":
    main()
