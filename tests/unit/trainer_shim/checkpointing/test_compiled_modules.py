"""The states of compiled modules: checkpoints fit whether or not a module is compiled."""

import copy

import pytest
import torch
from torch import nn

from trainer_shim.checkpointing.tracked_objects import TrackedObjects


def plain():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


class Compiled(nn.Module):
    """What torch.compile makes of a module, without the seconds that its import takes."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod = module


def compiled():
    return Compiled(plain())


def partly_compiled():
    net = plain()
    net[0] = Compiled(net[0])
    return net


def average():
    return torch.optim.swa_utils.AveragedModel(plain())


def average_of_compiled():
    made = average()
    made.module = Compiled(made.module)
    return made


def states(net):
    return copy.deepcopy(TrackedObjects({"net": net}, is_rank_zero=True).states().unsharded["net"])


@pytest.mark.parametrize("make", [compiled, partly_compiled])
@pytest.mark.parametrize("into", [plain, compiled, partly_compiled])
def test_a_state_fits_compiled_or_not(make, into):
    """The state of a compiled module has plain names, and loads into any form of the module."""
    state = states(make())
    assert list(state) == list(plain().state_dict())
    found = into()
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.zero_()
    tracked = TrackedObjects({"net": found}, is_rank_zero=True)
    tracked._stateful["net"].load_state_dict(state)
    assert all(map(torch.equal, found.parameters(), plain().parameters()))


def test_averages_of_compiled_models():
    """The prefix is left out at any depth, in averaged weights, too."""
    assert list(states(average_of_compiled())) == list(average().state_dict())
    found = average_of_compiled()
    TrackedObjects({"net": found}, is_rank_zero=True)._stateful["net"].load_state_dict(average().state_dict())


def test_a_state_with_prefixes_is_loaded():
    """A checkpoint of an earlier version, whose names have the prefix, loads into a plain module."""
    tracked = TrackedObjects({"net": plain()}, is_rank_zero=True)
    tracked._stateful["net"].load_state_dict(partly_compiled().state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        tracked._stateful["net"].load_state_dict({"_orig_mod.other": torch.zeros(2)})
