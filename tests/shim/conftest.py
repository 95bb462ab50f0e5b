"""Real trainers: several Python processes that form a gloo process group on this host.

Most are forked from a process that has imported torch. Processes that start from nothing are in test_rehearse.py,
test_examples.py, test_torchrun.py, and the journeys of test_training.py and test_sharded.py. With `--dist loadscope`,
one worker makes the trainings that the tests of a module share.
"""

import contextlib
import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.fork_server import ForkServer, start_process
from tests.ports import free_port
from trainer_shim.data.sample_order import SampleOrder

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DEADLINE = 120.0

# Every key of a report line by kind, with the types that the protocol allows.
NUMBER = (int, float)
KINDS = {
    "start": {
        "run": int,
        "incarnation": int,
        "world_size": int,
        "step": int,
        "samples": int,
        "resumed": bool,
        "init_seconds": float,
    },
    "trial": {
        "world_size": int,
        "steps": int,
        "samples": int,
        "seconds": float,
        "global_batch": int,
        "per_gpu_batch": int,
        "accumulation": int,
    },
    "declare": {"total_steps": int, "total_samples": int, "global_batch": int},
    "steps": {
        "step": int,
        "steps": int,
        "samples": int,
        "seconds": float,
        "data_seconds": float,
        "sync_seconds": float,
        "peak_bytes": int,
        "loss": (float, type(None)),
        "world_size": int,
        "global_batch": int,
        "per_gpu_batch": int,
        "accumulation": int,
    },
    "checkpoint": {"step": int, "seconds": float, "bytes": int, "cause": str, "stall_seconds": float},
    "stop": {"step": int, "cause": str, "noticed": float, "checkpointed": bool},
    "end": {"step": int, "samples": int, "loss": (float, type(None))},
}
# Keys of `declare` that not every script has.
RULE_KEYS = {"adapts", "regimes", "schedule", "sizes"}
# The further keys of a training whose batch adapts.
ADAPTIVE_KINDS = {
    "start": {"progress": float},
    "stop": {"progress": float},
    "end": {"progress": float},
    "declare": {
        "first_batch": int,
        "max_batch": int,
        "max_per_gpu": int,
        "min_per_gpu": int,
        "adaptive": bool,
        "lr_scale": str,
    },
    "steps": {
        "progress": float,
        "grad_square": (float, type(None)),
        "grad_variance": (float, type(None)),
        "plan": int,
    },
}


def load_script():
    """tests/shim/train.py as a module."""
    spec = importlib.util.spec_from_file_location("shim_train", HERE / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wait_for(condition, what):
    """Wait until `condition` returns something true, and return that."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    pytest.fail(f"timed out waiting for {what}")


def slurm_tasks(size):
    """The variables of each task of a Slurm step, none of which has a port."""
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": str(free_port()), "SLURM_STEP_NUM_TASKS": str(size)}
    step |= {"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
    return [step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(size)]


def torchrun_ranks(size):
    """The variables that torchrun sets for each rank; none for a process that is alone."""
    if size == 1:
        return [{}]
    world = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [world | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


class Trainers:
    """The processes of one world in a directory, each in a session of its own.

    `argv` is the script with its arguments; `ranks` has the variables of each rank. `number` counts the worlds in the
    directory.
    """

    def __init__(self, server, directory, number, argv, ranks):
        self.outputs = [directory / f"output-{number}-{rank}.txt" for rank in range(len(ranks))]
        self.processes = [
            start_process(server, argv, environ, output, directory)
            for environ, output in zip(ranks, self.outputs, strict=True)
        ]

    def signal(self, rank, number=signal.SIGUSR2):
        os.kill(self.processes[rank].pid, number)

    def wait(self):
        """The exit codes by rank."""
        return [process.wait(DEADLINE) for process in self.processes]

    def output(self, rank=0):
        return self.outputs[rank].read_text()

    def kill(self):
        for process in self.processes:
            if process.poll() is None:  # perhaps without a session yet
                os.kill(process.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):  # loader workers may have outlived their trainer
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE)


class Workplace:
    """A job's directory, and all the trainers that were started on it: by the server, or from nothing without one."""

    def __init__(self, directory, script=HERE / "train.py", server=None):
        self.directory = directory
        self.script = script
        self.server = server
        self.reports = directory / "reports" / "0123456789abcdef"
        self.reports.parent.mkdir(parents=True)
        self.lease = directory / "lease.json"
        self.started = []

    def launch(self, size, *arguments, run=1, ranks=torchrun_ranks, **variables):
        """Start trainers, whose ranks are told by the variables of `ranks`; `run=None` leaves metasched out."""
        if run is not None:
            if not self.lease.exists():
                self.write_lease(run=run)
            variables = {
                "METASCHED_RUN": str(run),
                "METASCHED_LEASE": str(self.lease),
                "METASCHED_REPORTS": str(self.reports),
                "METASCHED_EXIT_CODE": "85",
                "METASCHED_SIGNAL": "SIGUSR2",
            } | variables
        environs = [own | variables for own in ranks(size)]
        argv = [self.script, self.directory, *arguments]
        trainers = Trainers(self.server, self.directory, len(self.started), argv, environs)
        self.started.append(trainers)
        return trainers

    def write_lease(self, run, stop_run=None, seconds=60.0, **further):
        """Replace the lease; a stop has its deadline so many seconds from now."""
        now = time.time()
        stop = stop_run and {"run": stop_run, "requested": now, "deadline": now + seconds, "reason": "a test"}
        partial = self.lease.with_suffix(".partial")
        partial.write_text(json.dumps({"format": 1, "uid": self.reports.name, "run": run, "stop": stop} | further))
        partial.replace(self.lease)

    def trained(self, generation, rank="*"):
        """What the generation has trained: a list of {epoch, step, indices}, from all its ranks or from one."""
        lines = []
        for path in self.directory.glob(f"trained-{generation}-{rank}.jsonl"):
            lines += [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return lines

    def last_step(self, generation, rank="*"):
        return max((line["step"] for line in self.trained(generation, rank)), default=0)

    @staticmethod
    def wait_for(condition, what):
        """Wait until `condition` returns something true, and return that."""
        return wait_for(condition, what)

    def wait_for_step(self, generation, step):
        wait_for(lambda: self.last_step(generation) >= step, f"step {step} of generation {generation}")

    @contextlib.contextmanager
    def halted(self, generation, step):
        """A block in which trainers that were told to `--halt` at that step do no other."""
        self.wait_for_step(generation, step)
        yield
        (self.directory / f"go-{step}").touch()

    def evaluated(self, generation, rank=0):
        """What the rank has written of its evaluations."""
        path = self.directory / f"evaluated-{generation}-{rank}.txt"
        return path.read_text().splitlines() if path.exists() else []

    def report(self, generation, *, adaptive=False):
        """The report lines of a generation; fails where one is not what the protocol says."""
        lines = (self.reports / f"incarnation-{generation}.jsonl").read_text()
        assert lines.endswith("\n")
        found = []
        for text in lines.splitlines():
            line = json.loads(text)
            assert line["v"] == 1
            assert abs(line["t"] - time.time()) < 3600
            keys = KINDS[line["kind"]] | (ADAPTIVE_KINDS.get(line["kind"], {}) if adaptive else {})
            assert line.keys() - RULE_KEYS == keys.keys() | {"v", "t", "kind"}
            for key, kind in keys.items():
                assert isinstance(line[key], kind), (key, line)
            found.append(line)
        return found

    def surviving(self):
        """{epoch: sorted indices} over the steps that later generations built on."""
        count = len(list((self.directory / "checkpoints" / "incarnations").iterdir()))
        begins = [self.report(number)[0]["step"] for number in range(1, count + 1)] + [sys.maxsize]
        seen = {}
        for number in range(1, count + 1):
            for line in self.trained(number):
                if line["step"] <= begins[number]:
                    seen.setdefault(line["epoch"], []).extend(line["indices"])
        return {epoch: sorted(indices) for epoch, indices in seen.items()}

    def manifests(self):
        """One for each whole checkpoint."""
        return list((self.directory / "checkpoints").glob("*.json"))

    def checkpoint_files(self):
        return sorted(path.name for path in (self.directory / "checkpoints").glob("*.*"))


@contextlib.contextmanager
def workplaces(factory, **options):
    """A function that makes workplaces; the trainers that still run in them are killed at the end."""
    made = []

    def make():
        made.append(Workplace(factory.mktemp("job"), **options))
        return made[-1]

    try:
        yield make
    finally:
        for place in made:
            for trainers in place.started:
                trainers.kill()


@pytest.fixture(scope="module", autouse=True)
def on_cpu():
    """Trainers of the tests in this folder take no GPU of this host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


@pytest.fixture(scope="session")
def server():
    """Forks trainers that need not import torch; it and they are dead at the end."""
    with ForkServer() as made:
        yield made


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, server):
    """Make workplaces; the trainers that still run in them are killed at the end."""
    with workplaces(tmp_path_factory, server=server) as make:
        yield make


@pytest.fixture
def run_code(server, tmp_path):
    """Run Python code on a number of ranks in the test's directory; returns exit codes and outputs, by rank."""
    started = []

    def run(code, *arguments, size=1, **variables):
        script = tmp_path / "script.py"
        script.write_text(code)
        ranks = [own | variables for own in torchrun_ranks(size)]
        started.append(Trainers(server, tmp_path, len(started), [script, *arguments], ranks))
        return started[-1].wait(), [started[-1].output(rank) for rank in range(size)]

    yield run
    for trainers in started:
        trainers.kill()


@pytest.fixture(scope="module")
def script():
    return load_script()


@pytest.fixture(scope="module")
def plain_training(script):
    """The final parameters by plain torch: one process, one backward for each global batch."""

    def train(samples, global_batch, epochs):
        dataset, net = script.Numbers(samples), script.make_net(0.0)
        optimizer, schedule = script.make_optimizer(net.parameters())
        for epoch in range(epochs):
            for batch in SampleOrder(1, samples, shuffle=True).epoch_indices(epoch).split(global_batch):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(net(dataset.features[batch]), dataset.targets[batch]).backward()
                optimizer.step()
                schedule.step()
        return net.state_dict()

    return train
