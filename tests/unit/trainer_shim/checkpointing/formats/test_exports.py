"""Exports of trained models, read without the shim."""

import os
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader, load

import trainer_shim
from trainer_shim.errors import CheckpointError, UsageError


class Pretrained(torch.nn.Linear):
    """A module that saves itself as those of Hugging Face do."""

    def save_pretrained(self, directory, state_dict):
        directory.mkdir()
        torch.save(state_dict, directory / "weights")


@pytest.fixture
def ctx(tmp_path, trainer_process):
    """A context that tracks a wrapped, a tied and a Hugging Face-like module; the environment is as before later."""
    with patch.dict(os.environ):
        context = trainer_shim.init(tmp_path / "checkpoints")
        tied = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        tied[1].weight = tied[0].weight
        modules = {"model": context.wrap(torch.nn.Linear(3, 2)), "tied": tied, "hf": Pretrained(2, 2)}
        context.track(**modules, optimizer=torch.optim.SGD(modules["model"].parameters(), lr=0.1))
        context.modules = modules
        yield context
    torch.distributed.destroy_process_group()


def test_all_formats_hold_the_weights(ctx, tmp_path):
    """DCP, torch.load, safetensors and save_pretrained have the states without DDP's prefix."""
    path = tmp_path / "final"
    ctx.export(path)
    ctx.export(path)  # replaces its predecessor
    expected = ctx.modules["model"].module.state_dict()
    states = {"model": {name: torch.zeros_like(value) for name, value in expected.items()}}
    load(states, storage_reader=FileSystemReader(path / "dcp"))
    for found in (states["model"], torch.load(path / "model.pt"), load_file(path / "model.safetensors")):
        torch.testing.assert_close(dict(found), dict(expected), rtol=0, atol=0)
    assert load_file(path / "tied.safetensors").keys() == ctx.modules["tied"].state_dict().keys()
    assert torch.load(path / "hf" / "weights").keys() == {"weight", "bias"}
    assert not list(tmp_path.glob("*.partial"))


def test_other_files_are_left_alone(ctx, tmp_path):
    """A directory that is no export is not replaced, and the error names it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").touch()
    with pytest.raises(CheckpointError, match=r"data: the export cannot be written: there is something else"):
        ctx.export(tmp_path / "data")
    assert (tmp_path / "data" / "thesis.txt").exists()


def test_an_export_needs_a_model(tmp_path, trainer_process):
    """The error names ctx.track."""
    with patch.dict(os.environ):
        context = trainer_shim.init(tmp_path / "checkpoints")
    with pytest.raises(UsageError, match="track"):
        context.export(tmp_path / "final")
    torch.distributed.destroy_process_group()
