"""Trainers under torchrun: they receive the signals, save a checkpoint, and their exit code is preserved."""

import importlib.util
import os
import signal
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

pytestmark = pytest.mark.shim

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "tests" / "shim" / "train.py"
SAMPLES, EPOCHS, STEPS_PER_EPOCH = 203, 3, 21


def wrapper():
    """The wrapper as a module."""
    loader = SourceFileLoader("metasched_run", str(ROOT / "slurm_scripts" / "metasched-run"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("metasched_run", loader))
    loader.exec_module(module)
    return module


def descendants(pid):
    """The pids of a process and of all its descendants: the processes of a Slurm step."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


class Torchrun:
    """Real torchrun on a workplace, as one task of a node; `wrapped` as the wrapper starts it, else by hand."""

    def __init__(self, place, run, ranks, *arguments, wrapped, **variables):
        place.write_lease(run=run)
        self.output = place.directory / f"torchrun-{run}.txt"
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PET_"))}
        environ |= {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "METASCHED_RUN": str(run),
            "METASCHED_LEASE": str(place.lease),
            "METASCHED_REPORTS": str(place.reports),
            "METASCHED_EXIT_CODE": "85",
            "TMPDIR": str(place.directory),
        }
        command = [sys.executable, "-m", "torch.distributed.run"]
        if wrapped:
            module = wrapper()
            slurm = {"SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": str(ranks), "SLURM_NODEID": "0"}
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(module.free_port())}
            environ |= slurm | meeting | module.torchrun_options(slurm | meeting)
            command = ["sh", "-c", module.TORCHRUN_SHELL, "sh", str(int(signal.SIGUSR2)), *command]
        else:
            command += ["--standalone", f"--nproc-per-node={ranks}"]
        command += [str(TRAIN), str(place.directory), *arguments]
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                command, env=environ | variables, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def signal_all(self, number):
        """Signal every process, as Slurm signals a step."""
        for pid in descendants(self.process.pid):
            os.kill(pid, number)

    def signal_torchrun(self, number):
        os.kill(self.process.pid, number)

    def wait(self):
        return self.process.wait(120)

    def kill(self):
        for pid in descendants(self.process.pid) if self.process.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def journey(workplace):
    """Stopped under the wrapper's torchrun by both signals, then under torchrun by hand, and ended there."""
    place = workplace()
    halts = 4, STEPS_PER_EPOCH + 2, STEPS_PER_EPOCH + 6
    halting = [("--step-seconds", "0.1", "--halt", str(step)) for step in halts]
    runs = []
    try:
        runs.append(Torchrun(place, 1, 2, *halting[0], wrapped=True))
        with place.halted(1, halts[0]):
            runs[-1].signal_all(signal.SIGUSR2)
        codes = [runs[-1].wait()]
        runs.append(Torchrun(place, 2, 3, *halting[1], wrapped=True))
        with place.halted(2, halts[1]):
            runs[-1].signal_all(signal.SIGTERM)
        codes.append(runs[-1].wait())
        runs.append(Torchrun(place, 3, 1, *halting[2], wrapped=False, PET_SIGNALS_TO_HANDLE="SIGTERM,SIGUSR2"))
        with place.halted(3, halts[2]):
            runs[-1].signal_torchrun(signal.SIGUSR2)
        codes.append(runs[-1].wait())
        runs.append(Torchrun(place, 4, 2, wrapped=True))
        codes.append(runs[-1].wait())
    finally:
        for run in runs:
            run.kill()
    return place, codes, [run.output.read_text() for run in runs]


def test_the_wrapper_preserves_exit_codes(journey):
    """The wrapper's shell exits with the trainers' code; torchrun by hand hides it."""
    assert journey[1] == [85, 85, 1, 0], journey[2]


def test_no_sample_is_lost(journey):
    """At every stop all ranks end after the same step with a checkpoint, and no sample is lost or trained twice."""
    place = journey[0]
    for generation, cause, ranks in [(1, "signal", 2), (2, "sigterm", 3), (3, "signal", 1)]:
        start, stop = place.report(generation)[0], place.report(generation)[-1]
        assert (start["world_size"], stop["cause"], stop["checkpointed"]) == (ranks, cause, True)
        assert {place.last_step(generation, rank) for rank in range(ranks)} == {stop["step"]}
    assert place.surviving() == {epoch: list(range(SAMPLES)) for epoch in range(EPOCHS)}


def test_a_stop_is_no_failure_to_torchrun(journey):
    """A stop is no failure to torchrun, and nothing is left in the temporary directory."""
    place, _, outputs = journey
    assert "ChildFailedError" not in outputs[0]
    assert not list(place.directory.glob("tmp.*"))


def test_trainers_warn_where_the_signal_would_end_torchrun(workplace):
    """The trainer says so where the preemption signal would end torchrun."""
    place = workplace()
    run = Torchrun(place, 1, 1, "--epochs", "1", wrapped=False, PET_SIGNALS_TO_HANDLE="SIGTERM")
    try:
        assert run.wait() == 0
    finally:
        run.kill()
    assert "torchrun would die of SIGUSR2" in run.output.read_text()
