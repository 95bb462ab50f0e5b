"""Streams in real worlds, as srun would start them: any size, any number of loader workers, and an end in common."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.shim

ROOT = Path(__file__).parents[2]
SAMPLES, EPOCHS, STEPS_PER_EPOCH = 83, 2, 9


class Step:
    """A Slurm step with one task for each rank, none of which knows a port."""

    def __init__(self, place, run, size, workers, halt, *arguments):
        place.write_lease(run=run)
        metasched = {
            "METASCHED_RUN": str(run),
            "METASCHED_LEASE": str(place.lease),
            "METASCHED_REPORTS": str(place.reports),
            "METASCHED_EXIT_CODE": "85",
        }
        slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": str(run), "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
        common = os.environ | metasched | slurm | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(ROOT / "tests" / "shim" / "train_stream.py"), str(place.directory)]
        self.processes, self.outputs = [], []
        for rank in range(size):
            self.outputs.append(place.directory / f"step-{run}-{rank}.txt")
            task = {"SLURM_STEP_NUM_TASKS": str(size), "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
            with self.outputs[-1].open("w") as file:
                process = subprocess.Popen(
                    [*command, str(workers), str(halt), *arguments],
                    env=common | task,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self.processes.append(process)
        place.started.append(self)

    def stop(self, rank):
        os.kill(self.processes[rank].pid, signal.SIGUSR2)

    def wait(self):
        return [process.wait(120) for process in self.processes]

    def output(self):
        return "".join(path.read_text() for path in self.outputs)

    def kill(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def journey(workplace):
    """A training on a stream through worlds of 1, 4, 2 and 3 ranks, with 0, 1, 3 and 0 loader workers each."""
    place = workplace()
    for run, size, workers, step in [(1, 1, 0, 3), (2, 4, 1, 6), (3, 2, 3, STEPS_PER_EPOCH + 3)]:
        running = Step(place, run, size, workers, step)
        with place.halted(run, step):
            running.stop(size - 1)
        assert running.wait() == [85] * size, running.output()
    last = Step(place, 4, 3, 0, 0)
    assert last.wait() == [0] * 3, last.output()
    return place


def reports(place, generation):
    path = place.reports / f"incarnation-{generation}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_sample_of_a_stream_once(journey):
    """Through all sizes, numbers of workers and stops, each epoch trains every sample of the stream exactly once."""
    begins = [reports(journey, number)[0]["step"] for number in (1, 2, 3, 4)] + [sys.maxsize]
    assert begins[1] < begins[2] <= STEPS_PER_EPOCH < begins[3]
    seen = {epoch: [] for epoch in range(EPOCHS)}
    for number in (1, 2, 3, 4):
        for line in journey.trained(number):
            if line["step"] <= begins[number]:
                seen[line["epoch"]] += line["indices"]
    assert {epoch: sorted(found) for epoch, found in seen.items()} == {
        epoch: list(range(SAMPLES)) for epoch in range(EPOCHS)
    }


def test_parameters_on_a_stream(journey, workplace):
    """The parameters, with the noise of every sample, are those of an undisturbed training up to rounding."""
    place = workplace()
    whole = Step(place, 1, 1, 0, 0)
    assert whole.wait() == [0], whole.output()
    found, expected = (torch.load(each.directory / "final.pt") for each in (journey, place))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_reports_of_a_stream(journey):
    """The length of a stream is not declared; its end is reported with all steps and samples."""
    lines = reports(journey, 4)
    assert (lines[1]["total_steps"], lines[1]["total_samples"], lines[1]["global_batch"]) == (None, None, 10)
    assert lines[-1]["kind"] == "end"
    assert (lines[-1]["step"], lines[-1]["samples"]) == (EPOCHS * STEPS_PER_EPOCH, EPOCHS * SAMPLES)


def test_streams_that_differ(workplace):
    """Ranks whose streams end at different places all fail with a word, and none waits for the others."""
    step = Step(workplace(), 1, 2, 0, 0, "split")
    assert 0 not in step.wait()
    for path in step.outputs:
        assert "a stream must be the same, in full, on every rank" in path.read_text()
