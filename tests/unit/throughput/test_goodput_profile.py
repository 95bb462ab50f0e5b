from __future__ import annotations

import pickle

import pytest

from metasched.core.model import Placement
from metasched.throughput.goodput_profile import (
    EpochRecords,
    GoodputProfile,
    ProfileTraining,
    StepTime,
    StepTimes,
    packed,
    rotated,
)

HALF = EpochRecords((10.0, 20.0, 30.0), (10.0, 20.0, 30.0), (1.0, 1.0, 1.0), (1.0, 3.0, 3.0))
FULL = EpochRecords((12.0, 24.0, 36.0), (6.0, 12.0, 18.0), (2.0, 2.0, 2.0), (2.0, 6.0, 6.0))


def profile(**more):
    """Two placements, two larger sizes, batches 8 and 16, three epochs."""
    placed = {
        (1,): StepTimes((2, 4, 8), (StepTime(1.0, 0.0), StepTime(2.0, 0.0), StepTime(4.0, 0.0))),
        (2, 1): StepTimes((2, 4), (StepTime(1.5, 0.5), StepTime(2.5, 0.5))),
    }
    scaled = {(4, 4, 2): StepTime(3.0, 2.0), (4, 8, 2): StepTime(5.0, 4.0), (4, 8, 4): StepTime(6.0, 4.0)}
    return GoodputProfile("app", placed, scaled, {8: HALF, 16: FULL}, epochs=3, gpu_type="t4", **more)


def place(*spread, gpu_type="t4"):
    return Placement(tuple(f"n{i}" for i in range(len(spread))), max(spread), gpu_type, uneven=spread)


def test_step_times_are_linear_between_measured_batches():
    """A measured batch size has its measured time; a size between two neighbours has a time between theirs."""
    app = profile()
    assert app.step_time((1,), 4) == StepTime(2.0, 0.0)
    assert app.step_time((1,), 6) == pytest.approx(StepTime(3.0, 0.0))
    assert app.step_time((1, 2), 3) == pytest.approx(StepTime(2.0, 0.5))


def test_a_rotation_of_a_measured_placement_counts_as_measured():
    """The order of nodes in a ring has no beginning."""
    assert rotated((4, 2, 1)) == rotated((2, 1, 4)) == (1, 4, 2)
    assert rotated((4, 1, 2)) == (1, 2, 4)
    assert profile().step_time((1, 2), 4) == profile().step_time((2, 1), 4)


def test_other_placements_are_interpolated_by_size():
    """Between the measured sizes the time is interpolated; outside of all sizes it is not known."""
    app = profile()
    assert app.step_time((1, 1, 1, 1), 2) == pytest.approx(StepTime(3.0, 2.0))
    between = app.step_time((2, 2, 1, 1), 2)
    assert 3.0 < between.step < 5.0
    assert app.step_time((4, 4), 8) is None
    assert app.step_time((1,), 16) is None


def test_a_batch_is_split_into_as_few_passes_as_memory_allows():
    """Accumulation begins where a GPU's part of the batch does not fit."""
    app = profile(most_local=4)
    assert app.split(8, 4) == (2, 0)
    assert app.split(8, 2) == (4, 0)
    assert app.split(16, 2) == (4, 1)


def test_the_largest_batch_is_never_exceeded():
    """Parts that are rounded up are reduced where their sum would be above it."""
    app = profile()
    split = app.split(16, 3)
    assert split == (5, 0)
    assert 3 * split.local <= app.most_batch


def test_a_single_gpu_with_more_than_the_first_batch_makes_two_passes():
    """The variance of gradients cannot be observed in one pass."""
    app = profile()
    assert app.split(8, 1) == (8, 0)
    assert app.split(16, 1) == (8, 1)


def test_larger_batches_gain_less_than_they_cost_and_more_when_gradients_are_noisy():
    """AdaScale's gain lies between 1 and the ratio of batch sizes, and grows with the noise."""
    app = profile()
    assert app.gain(8, 0) == 1.0
    assert app.gain(16, 0) == pytest.approx((2 + 2) / (2 / 2 + 2))
    assert 1.0 < app.gain(12, 1) < app.gain(16, 1) < 2.0
    assert app.gain(16, 0) < app.gain(16, 1)


def test_goodput_is_gain_over_the_time_of_all_passes():
    """Accumulated passes cost a step without its synchronisation."""
    app = profile(most_local=4)
    assert app.split(16, 3) == (2, 1)  # of 16 samples, 12: two passes of 3 would be 18
    assert app.goodput((2, 1), 16, 0) == pytest.approx(app.gain(12, 0) / (1.5 + 1.0))
    assert app.goodput((1,), 8, 0) == pytest.approx(1.0 / (2.0 + 2.0))


def test_training_proceeds_epoch_by_epoch():
    """An epoch ends at the progress at which the first batch size ended it; the last end is the total."""
    training = ProfileTraining(profile(), 16)
    assert training.total == 30.0
    first = training.pace(0.0, place(1))
    assert first.until == 10.0
    later = training.pace(10.0, place(1))
    assert later.until == 20.0
    assert later.steps_per_second > first.steps_per_second


def test_a_co_located_job_has_half_of_its_speed():
    """Co-location was not measured: each job has half of its speed, and policies know no co-located speed."""
    training = ProfileTraining(profile(), 8)
    alone, shared = training.pace(0.0, place(1)), training.pace(0.0, place(1), training)
    assert shared.steps_per_second == alone.steps_per_second / 2
    assert training.known(0.0).steps_per_second_with(training.known(0.0), "t4", (1,)) is None


def test_without_measurements_the_pace_is_0_and_the_speed_unknown():
    """On another GPU type, or on a placement outside of all measured sizes."""
    training = ProfileTraining(profile(), 8)
    assert training.pace(0.0, place(1, gpu_type="v100")).steps_per_second == 0.0
    assert training.known(0.0).steps_per_second("v100", (1,)) is None
    assert training.known(0.0).steps_per_second("t4", (4, 4)) is None


def test_policies_know_the_true_goodput_of_the_epoch():
    """The speed is the same object until the epoch ends, so that comparisons of jobs are fast."""
    training = ProfileTraining(profile(), 16)
    told = training.known(3.0)
    assert told is training.known(9.0)
    assert told is not training.known(10.0)
    assert told.steps_per_second("t4", (1,)) == training.pace(3.0, place(1)).steps_per_second


def test_a_pickled_profile_has_no_caches():
    """Cached results are computed again after unpickling."""
    app = profile()
    known = app.goodput((1, 1, 1, 1), 8, 0)
    again = pickle.loads(pickle.dumps(app))  # noqa: S301  our own bytes
    assert again._surface is None
    assert again.goodput((1, 1, 1, 1), 8, 0) == known


def test_packed_fills_nodes():
    """Whole nodes come first, the rest is on one more."""
    assert packed(9, 4) == (4, 4, 1)
    assert packed(8, 4) == (4, 4)
