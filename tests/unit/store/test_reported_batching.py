"""A job's batch size and gradient noise, as its reports say."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core.batching import AdaptationRule, BatchControl, Batching, BatchPlan, BatchRegime, GradientNoise
from metasched.shared_dir.reports import DeclareReport, RefusedLineError, StartReport, StepsReport, parse_line
from metasched.store.reported_batching import MAX_NOISE, MAX_REGIMES, ReportedBatching, has_implausible_noise

NOW = 1_732_118_400.0


def steps(step, batch=64, per_gpu=32, accumulation=1, **fields):
    return StepsReport(NOW, step, 10, 10 * batch, 1.0, None, 2, batch, per_gpu, accumulation, **fields)


def test_a_fixed_batch_is_the_first_batch():
    """Reports without declarations name the batch in force; nobody changes it."""
    found = ReportedBatching().after([steps(10), steps(20)]).batching
    assert found == Batching(64, plan=BatchPlan(32), global_batch=64, regimes=(BatchRegime(64, 0.0),))
    assert found.control is BatchControl.FIXED


def test_a_declaration_sets_the_limits_and_the_consent():
    """The first batch is the declared one; a script that consents lets the scheduler decide."""
    said = DeclareReport(NOW, 1000, None, 64, 64, 512, 8, 128, adaptive=True, lr_scale="sqrt")
    found = ReportedBatching().after([said, steps(10)]).batching
    assert (found.first_batch, found.max_batch, found.min_per_gpu, found.max_per_gpu) == (64, 512, 8, 128)
    assert found.control is BatchControl.SCHEDULER
    assert ReportedBatching(found).after([DeclareReport(NOW, global_batch=64)]).batching.control is found.control
    refused = DeclareReport(NOW, global_batch=64, adaptive=False)
    assert ReportedBatching(found).after([refused]).batching.control is BatchControl.FIXED


def test_a_changed_batch_begins_a_regime():
    """A regime begins at the progress before the first steps that report its batch; the script is its cause."""
    found = ReportedBatching().after([steps(10), steps(20), steps(30, 128, 64), steps(40, 128, 64)]).batching
    assert found.regimes == (BatchRegime(64, 0.0), BatchRegime(128, 20.0))
    assert found.control is BatchControl.SCRIPT
    assert (found.plan, found.global_batch) == (BatchPlan(64), 128)


def test_a_regime_begins_at_the_progress_in_steps_at_the_first_batch():
    """Where progress is reported, it counts, and not the number of optimizer steps."""
    found = ReportedBatching().after([steps(10, progress=10.0), steps(20, 128, 64, progress=27.5)]).batching
    assert found.regimes[-1] == BatchRegime(128, 10.0)


def test_the_latest_plan_that_was_taken_up_is_kept():
    """A trainer that has chosen a plan of its own since reports no number."""
    found = ReportedBatching().after([steps(10, plan=2), steps(20, plan=0)]).batching
    assert found.taken_plan == 2


def test_endless_regimes_are_cut():
    """A script that changes its batch at every step leaves the latest regimes."""
    found = ReportedBatching().after([steps(10 * n, 64 + n) for n in range(1, 3 * MAX_REGIMES)]).batching
    assert len(found.regimes) == MAX_REGIMES
    assert found.regimes[-1].batch == 64 + 3 * MAX_REGIMES - 1


def test_the_latest_noise_is_kept():
    """Reports without noise change nothing."""
    found = ReportedBatching().after([steps(10, grad_square=2.0, grad_variance=8.0), steps(20)])
    assert found.noise == GradientNoise(2.0, 8.0)


@pytest.mark.parametrize(("square", "variance"), [(-1.0, 1.0), (1.0, -1e-9), (1e40, 1.0), (1.0, 1e300)])
def test_implausible_noise_is_clamped(square, variance):
    """Negative and huge numbers are told apart from honest ones."""
    bad = steps(10, grad_square=square, grad_variance=variance)
    assert has_implausible_noise(bad)
    assert not has_implausible_noise(steps(10, grad_square=1.0, grad_variance=2.0))
    noise = ReportedBatching().after([bad]).noise
    assert 0 <= noise.square <= MAX_NOISE
    assert 0 <= noise.variance <= MAX_NOISE


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(-1e300, 1e300), st.floats(-1e300, 1e300)), max_size=20))
def test_one_report_at_a_time_is_the_same_as_all_at_once(reported):
    """How many lines a poll reads makes no difference."""
    lines = [
        steps(10 * (i + 1), batch, grad_square=square, grad_variance=variance)
        for i, (batch, square, variance) in enumerate(reported)
    ]
    one_by_one = ReportedBatching()
    for line in lines:
        one_by_one = one_by_one.after([line])
    assert one_by_one == ReportedBatching().after(lines)


def test_a_script_declares_the_rule_by_which_it_changes_its_batch():
    """Its word is stored with the limits; a later declaration without it takes it back."""
    said = DeclareReport(NOW, 1000, None, 64, 64, 512, adaptive=False, adapts="schedule", schedule=((64, 0), (128, 20)))
    found = ReportedBatching().after([said, steps(10)]).batching
    assert (found.control, found.adapts, found.most_regimes) == (BatchControl.SCRIPT, AdaptationRule.SCHEDULE, None)
    assert found.schedule == (BatchRegime(64, 0.0), BatchRegime(128, 20.0))
    counted = DeclareReport(NOW, global_batch=64, adapts="static", regimes=1)
    assert ReportedBatching().after([counted]).batching.control is BatchControl.FIXED
    assert ReportedBatching(found).after([DeclareReport(NOW, global_batch=64)]).batching.adapts is None


@pytest.mark.parametrize("schedule", [[[64, 5]], [[64, 0], [128, 0]], [[64, 0], [0, 5]], [[64, 0]] * 65])
def test_a_schedule_out_of_order_is_refused(schedule):
    """Its first regime begins at 0, and each other one later."""
    line = {"v": 1, "t": NOW, "kind": "declare", "adapts": "schedule", "schedule": schedule}
    with pytest.raises(RefusedLineError):
        parse_line(json.dumps(line).encode(), NOW)


def test_the_progress_of_a_script_that_changes_its_batch_is_that_of_its_samples():
    """Ten steps over twice the samples are twenty steps at the first batch; a restart sets the progress back."""
    found = ReportedBatching().after([steps(10), steps(20), steps(30, 128)])
    assert found.progress == 40.0
    found = found.after([StartReport(NOW, 1, 2, 2, 25, 64 * 30, resumed=True, init_seconds=0.0)])
    assert found.progress == 30.0
    assert found.after([steps(35, 128)]).progress == 50.0
