"""Real trainers of real frameworks: several Python processes on this host, started as torchrun or srun would.

Most are forked from a process that has imported the framework. Others start from nothing: frameworks read some
variables when they are imported. With `--dist loadgroup`, one worker makes a framework's jobs for all their tests.
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

from tests.fork_server import ForkServer, start_process
from tests.ports import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DEADLINE = 200.0
PACKAGES = {"lightning": "pytorch_lightning", "transformers": "transformers", "accelerate": "accelerate"}
# What a fork server imports. Transformers imports its trainer late.
MODULES = {
    "lightning": ("pytorch_lightning", "metasched_lightning"),
    "transformers": ("transformers.trainer", "metasched_transformers"),
    "accelerate": ("accelerate", "metasched_accelerate"),
}
ENVIRON = {
    "PYTHONPATH": f"{ROOT}:{ROOT / 'contrib' / 'integrations'}",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def load_script(name):
    """A file of this folder as a module."""
    spec = importlib.util.spec_from_file_location(f"integrations_{name}", HERE / f"{name}.py")
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


class Job:
    """A job's directory, and all the trainers that were started on it."""

    def __init__(self, directory, framework, server):
        self.directory = directory
        self.server = server
        self.script = HERE / f"train_{framework}.py"
        self.reports = directory / "reports" / "0123456789abcdef"
        self.reports.parent.mkdir()
        self.started = []

    def launch(self, size, *arguments, slurm=False, forked=True):
        """Start the processes of one run, under torchrun's variables or srun's, or alone; returns them."""
        run, port = len(self.started) + 1, str(free_port())  # one for all ranks
        world = []
        for rank in range(size):
            environ = {
                "METASCHED_RUN": str(run),
                "METASCHED_REPORTS": str(self.reports),
                "METASCHED_EXIT_CODE": "85",
                "METASCHED_SIGNAL": "SIGUSR2",
            }
            family = (
                ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
                if slurm
                else ("RANK", "WORLD_SIZE", "LOCAL_RANK")
            )
            if size > 1 or slurm:
                environ |= dict(zip(family, map(str, (rank, size, rank)), strict=True))
                environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                if slurm:
                    environ |= {"SLURM_JOB_ID": "1", "SLURM_NTASKS": str(size), "SLURM_JOB_NAME": "a test"}
            argv, output = [self.script, self.directory, *arguments], self.directory / f"output-{run}-{rank}.txt"
            server = self.server if forked else None
            world.append(start_process(server, argv, ENVIRON | environ, output, self.directory))
        self.started.append(world)
        return world

    def wait(self, world):
        """The exit codes by rank."""
        return [process.wait(DEADLINE) for process in world]

    def output(self, run, rank=0):
        return (self.directory / f"output-{run}-{rank}.txt").read_text()

    def trained(self, generation):
        """What the generation has trained: a list of {step, indices}, from all its ranks."""
        lines = []
        for path in self.directory.glob(f"trained-{generation}-*.jsonl"):
            lines += [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return lines

    def last_step(self, generation):
        return max((line["step"] for line in self.trained(generation)), default=0)

    def wait_for_step(self, run, step):
        """Wait until a run trains this step; it may also have ended, which its exit code tells."""
        world = self.started[run - 1]
        wait_for(lambda: self.last_step(run) >= step or world[0].poll() is not None, f"step {step} of run {run}")

    @contextlib.contextmanager
    def halted(self, step):
        """A block in which the last run, which was told to `--halt` in that step, does not end it."""
        self.wait_for_step(len(self.started), step)
        yield
        (self.directory / f"go-{step}").touch()

    def stop_at(self, step, size, *arguments, rank=0, number=signal.SIGUSR2, slurm=False, forked=True):
        """Run until that step, signal one rank in it, and return the exit codes."""
        world = self.launch(size, "--halt", step, *arguments, slurm=slurm, forked=forked)
        with self.halted(step):
            world[rank].send_signal(number)
        return self.wait(world)

    def report(self, generation):
        path = self.reports / f"incarnation-{generation}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def surviving(self):
        """{step: sorted indices} over the steps that later generations built on."""
        count = len(self.started)
        begins = [self.report(number)[0]["step"] for number in range(1, count + 1)] + [sys.maxsize]
        seen = {}
        for number in range(1, count + 1):
            for line in self.trained(number):
                if line["step"] <= begins[number]:
                    seen.setdefault(line["step"], []).extend(line["indices"])
        return {step: sorted(indices) for step, indices in seen.items()}

    def checkpoints(self):
        """The step of every checkpoint that counts."""
        return sorted(int(path.stem.partition("-")[2]) for path in self.directory.glob("checkpoints/*/step-*.json"))

    def kill(self):
        for process in (process for world in self.started for process in world):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE)


@pytest.fixture(scope="module", autouse=True)
def outside_of_slurm():
    """Trainers have no variables of a step or of metasched but those that a test gives."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("SLURM_", "METASCHED_"))]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in PACKAGES])
def framework(request):
    package = PACKAGES[request.param]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install 'metasched[integrations]'")
    return request.param


@pytest.fixture(scope="module")
def server(framework):
    """Forks trainers that need not import the framework; it and they are dead at the end."""
    with ForkServer(*MODULES[framework], **ENVIRON) as made:
        yield made


@pytest.fixture(scope="module")
def job(framework, server, tmp_path_factory):
    """Make jobs; whatever still runs in them is killed at the end."""
    made = []

    def make():
        made.append(Job(tmp_path_factory.mktemp("job"), framework, server))
        return made[-1]

    yield make
    for place in made:
        place.kill()


@pytest.fixture(scope="session")
def common():
    return load_script("common")
