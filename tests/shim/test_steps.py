"""Trainings that count steps and draw random batches, with real process groups."""

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader, load

from tests.shim.conftest import workplaces

pytestmark = pytest.mark.shim
STEPS = 12


@pytest.fixture(scope="module")
def journey(tmp_path_factory, server):
    """Two jobs: one rank undisturbed; two ranks, stopped at step 4, then one rank to step 8, then two ranks."""
    with workplaces(tmp_path_factory, script=Path(__file__).parent / "train_steps.py", server=server) as make:
        undisturbed, disturbed = make(), make()
        assert undisturbed.launch(1, STEPS, 0).wait() == [0]
        for number, (size, halt) in enumerate(((2, 4), (1, 8)), start=1):
            disturbed.write_lease(run=number)
            trainers = disturbed.launch(size, STEPS, halt, run=number)
            with disturbed.halted(number, halt):
                trainers.signal(size - 1)
            assert trainers.wait() == [85] * size
        disturbed.write_lease(run=3)
        assert disturbed.launch(2, STEPS, 0, run=3).wait() == [0, 0]
        yield undisturbed, disturbed


def test_parameters_and_statistics_do_not_depend_on_the_sizes(journey):
    """Through 2, 1 and 2 ranks, weights, averaged weights and BatchNorm's statistics are those of one rank."""
    undisturbed, disturbed = (torch.load(place.directory / "final.pt") for place in journey)
    for name in ("model", "average"):
        torch.testing.assert_close(disturbed[name], undisturbed[name], rtol=0, atol=1e-10)
    assert undisturbed["model"]["1.num_batches_tracked"] == STEPS


def test_the_global_batches_are_the_same(journey):
    """Every step of the surviving history trains on the samples of the undisturbed run."""
    undisturbed, disturbed = journey

    def surviving(place):
        seen = {}
        begins = [place.report(number)[0]["step"] for number in range(1, len(place.started) + 1)] + [STEPS]
        for number in range(1, len(place.started) + 1):
            for line in place.trained(number):
                if begins[number - 1] < line["step"] <= begins[number]:
                    seen.setdefault(line["step"], []).extend(line["indices"])
        return {step: sorted(drawn) for step, drawn in seen.items()}

    assert surviving(disturbed) == surviving(undisturbed)
    assert len(surviving(disturbed)) == STEPS


def test_an_export_is_read_without_the_shim(journey):
    """torch.distributed.checkpoint reads the states that two ranks exported."""
    directory = journey[1].directory
    final = torch.load(directory / "final.pt")
    states = {"model": {name: torch.zeros_like(value) for name, value in final["model"].items()}}
    load(states, storage_reader=FileSystemReader(directory / "export" / "dcp"))
    torch.testing.assert_close(states["model"], dict(final["model"]), rtol=0, atol=0)
    plain = torch.load(directory / "export" / "model.pt", weights_only=True)
    torch.testing.assert_close(plain, dict(final["model"]), rtol=0, atol=0)
