"""Streams on several ranks, started as by srun: world sizes, numbers of loader workers, and a common end."""

import json
import sys
from pathlib import Path

import pytest
import torch

from tests.shim.conftest import slurm_tasks

pytestmark = pytest.mark.shim

SAMPLES, EPOCHS, STEPS_PER_EPOCH = 83, 2, 9


@pytest.fixture(scope="module")
def workplace(workplace):
    """Make workplaces whose trainers train on a stream."""

    def make():
        place = workplace()
        place.script = Path(__file__).with_name("train_stream.py")
        return place

    return make


@pytest.fixture(scope="module")
def journey(workplace):
    """A training on a stream through worlds of 1, 4, 2 and 3 ranks, with 0, 1, 3 and 0 loader workers each."""
    place = workplace()
    for run, size, workers, step in [(1, 1, 0, 3), (2, 4, 1, 6), (3, 2, 3, STEPS_PER_EPOCH + 3)]:
        place.write_lease(run)
        running = place.launch(size, workers, step, run=run, ranks=slurm_tasks)
        with place.halted(run, step):
            running.signal(size - 1)
        assert running.wait() == [85] * size, running.output()
    place.write_lease(4)
    last = place.launch(3, 0, 0, run=4, ranks=slurm_tasks)
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
    whole = place.launch(1, 0, 0, ranks=slurm_tasks)
    assert whole.wait() == [0], whole.output()
    found, expected = (torch.load(each.directory / "final.pt") for each in (journey, place))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_reports_of_a_stream(journey):
    """The length of a stream is not declared; its end is reported with all steps and samples."""
    lines = reports(journey, 4)
    assert (lines[1]["total_steps"], lines[1]["total_samples"], lines[1]["global_batch"]) == (None, None, 10)
    assert lines[-1]["kind"] == "end"
    assert (lines[-1]["step"], lines[-1]["samples"]) == (EPOCHS * STEPS_PER_EPOCH, EPOCHS * SAMPLES)


def test_streams_that_differ_between_ranks_are_refused(workplace):
    """Ranks whose streams have different ends all fail with an error that names the cause."""
    trainers = workplace().launch(2, 0, 0, "split", ranks=slurm_tasks)
    assert 0 not in trainers.wait()
    for rank in range(2):
        assert "a stream must be the same, in full, on every rank" in trainers.output(rank)
