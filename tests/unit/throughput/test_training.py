import pytest

from metasched.throughput.adaptive_profile import AdaptiveProfileTraining
from metasched.throughput.batch_size_regimes import RegimeTraining
from metasched.throughput.fitted_training import FittedTraining
from metasched.throughput.training import is_adaptive, is_scripted


class Plain:
    """A training of constant speed."""

    total = 1.0

    def pace(self, done, placement, co_runner=None):
        raise NotImplementedError

    def known(self, done):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("kind", "adaptive", "scripted"),
    [
        (Plain, False, False),
        (AdaptiveProfileTraining, True, False),
        (FittedTraining, True, False),
        (RegimeTraining, False, True),
    ],
)
def test_the_class_of_a_training_tells_whether_its_batch_changes(kind, adaptive, scripted):
    """Metasched changes the batch of adaptive trainings, their own scripts that of scripted ones."""
    training = object.__new__(kind)
    assert (is_adaptive(training), is_scripted(training)) == (adaptive, scripted)
