"""Real trainers: several Python processes that form a gloo process group on this host."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

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
    pytest.fail(f"waited in vain for {what}")


class Trainers:
    """The processes of one world, each in a session of its own, which run the `command`."""

    def __init__(self, directory, number, size, command, variables):
        port = free_port()
        self.processes, self.outputs = [], []
        for rank in range(size):
            environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables
            if size > 1:
                environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
                environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            output = directory / f"output-{number}-{rank}.txt"
            with output.open("w") as file:
                process = subprocess.Popen(
                    command, env=environ, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
                )
            self.processes.append(process)
            self.outputs.append(output)

    def signal(self, rank, number=signal.SIGUSR2):
        os.kill(self.processes[rank].pid, number)

    def wait(self):
        """The exit codes by rank."""
        return [process.wait(DEADLINE) for process in self.processes]

    def output(self, rank=0):
        return self.outputs[rank].read_text()

    def kill(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Workplace:
    """A job's directory, and all the trainers that were started on it."""

    def __init__(self, directory, script=HERE / "train.py"):
        self.directory = directory
        self.script = script
        self.reports = directory / "reports" / "0123456789abcdef"
        self.reports.parent.mkdir(parents=True)
        self.lease = directory / "lease.json"
        self.started = []

    def launch(self, size, *arguments, run=1, **variables):
        """Start trainers; `run=None` leaves metasched out."""
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
        command = [sys.executable, str(self.script), str(self.directory), *map(str, arguments)]
        trainers = Trainers(self.directory, len(self.started), size, command, variables)
        self.started.append(trainers)
        return trainers

    def write_lease(self, run, stop_run=None, seconds=60.0):
        """Replace the lease; a stop has its deadline so many seconds from now."""
        now = time.time()
        stop = stop_run and {"run": stop_run, "requested": now, "deadline": now + seconds, "reason": "a test"}
        partial = self.lease.with_suffix(".partial")
        partial.write_text(json.dumps({"format": 1, "uid": self.reports.name, "run": run, "stop": stop}))
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

    def report(self, generation):
        """The report lines of an generation; fails where one is not what the protocol says."""
        lines = (self.reports / f"incarnation-{generation}.jsonl").read_text()
        assert lines.endswith("\n")
        found = []
        for text in lines.splitlines():
            line = json.loads(text)
            assert line["v"] == 1
            assert abs(line["t"] - time.time()) < 3600
            keys = KINDS[line["kind"]]
            assert line.keys() == keys.keys() | {"v", "t", "kind"}
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
def workplaces(*options, factory):
    """What makes workplaces; whatever still runs in them is killed at the end."""
    made = []

    def make():
        made.append(Workplace(factory.mktemp("job"), *options))
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


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Make workplaces; whatever still runs in them is killed at the end."""
    with workplaces(factory=tmp_path_factory) as make:
        yield make


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
