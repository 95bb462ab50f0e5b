"""Run the search of Pollux's public simulator on one state, and print its answer as JSON; for pollux_search.py.

It runs in a Python of its own, with numpy, scipy, autograd and pymoo 0.4, and needs a copy of the artifact's
``simulator`` folder. The state comes as JSON on standard input. Names that newer versions of numpy have dropped are put
back, and every job's fair goodput is that of the state, so that the objective is the same as ours.
"""

import argparse
import importlib
import json
import logging
import sys
import time
from typing import Any

import numpy as np

GPU = "nvidia.com/gpu"


def job_info(modules: Any, facts: Any) -> Any:
    """One job of the state as the artifact's record."""
    goodput, speedup, utils = modules
    a_grad, b_grad, a_local, b_local, a_node, b_node, gamma = facts["theta"]
    first = facts["first_batch"]
    theta = (a_grad, b_grad, a_node, b_node, a_local, b_local, gamma)
    function = goodput.GoodputFunction(theta, (1.0, facts["noise_scale"] / first), first)
    limits = facts["min_per_gpu"], facts["max_per_gpu"]
    speed = speedup.SpeedupFunction(function, facts["max_batch"], limits, accumulation=True)
    speed.fair_goodput = facts["fair_goodput"]
    info = utils.JobInfo({GPU: 1}, speed, facts["created"], facts["age"], 0, facts["most_gpus"])
    info.num_restarts, info.age = facts["reallocations"], facts["age"]
    return info


def main() -> None:
    """Search once, and print the CPU seconds and the allocation of each job as a list of nodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("simulator", help="the artifact's simulator folder")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for name, kind in (("int", int), ("float", float), ("bool", bool)):
        if name not in vars(np):
            setattr(np, name, kind)
    sys.path.insert(0, given.simulator)
    pollux, *modules, utils = (importlib.import_module(name) for name in ("pollux", "goodput", "speedup", "utils"))
    state = json.load(sys.stdin)
    original = pollux.Problem.__init__

    def with_fair_goodput(problem: Any, jobs: Any, nodes: Any, base: Any) -> None:
        original(problem, jobs, nodes, base)
        for job in jobs:
            job.speedup_fn._base_goodput = job.speedup_fn.fair_goodput  # noqa: SLF001  the artifact's own attribute

    pollux.Problem.__init__ = with_fair_goodput
    jobs = {facts["key"]: job_info((*modules, utils), facts) for facts in state["jobs"]}
    nodes = {number: utils.NodeInfo({GPU: gpus}, False) for number, gpus in enumerate(state["nodes"])}  # noqa: FBT003
    np.random.seed(given.seed)  # noqa: NPY002  what the artifact draws from
    begun = time.process_time()
    allocations, _ = pollux.PolluxPolicy().optimize(jobs, nodes, state["present"], nodes[0])
    seconds = time.process_time() - begun
    print(json.dumps({"seconds": seconds, "allocations": allocations}))


if __name__ == "__main__":
    main()
