import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.apps.live_apps import MOST_STEPS, LiveApps

ROUNDS = st.lists(st.tuples(st.floats(0.5, 100), st.integers(0, 5), st.floats(0.01, 1)), min_size=1, max_size=30)


@given(ROUNDS, st.floats(-50, 3000))
def test_the_integral_counts_live_apps_from_round_to_round(rounds, begin):
    """An arrival counts from its submission; before the first round the number is that of the first round."""
    live, now, truth = LiveApps(()), 0.0, []
    for gap, number, part in rounds:
        arrival = now + part * gap
        later = [(arrival, truth[-1][1] + 1)] if truth and arrival < now + gap else []
        truth += [*later, (now + gap, number)]
        live = live.after(now + gap, number, [instant for instant, _ in later], 0.0)
        now += gap
    begin = min(begin, now)
    spans = zip(truth, [*truth[1:], (now, 0)], strict=True)
    expected = truth[0][1] * max(0.0, truth[0][0] - begin)
    expected += sum(number * max(0.0, end - max(begin, start)) for (start, number), (end, _) in spans)
    assert live.integral(begin, now) == pytest.approx(expected, abs=1e-6)


def test_a_number_that_stays_is_one_step():
    """Days without a change take no space."""
    live = LiveApps(())
    for now in range(1000):
        live = live.after(float(now), 3, [], 0.0)
    assert live.steps == ((0.0, 3),)


def test_many_steps_are_merged():
    """The integral since the first step remains."""
    live = LiveApps(())
    for now in range(2000):
        live = live.after(float(now), 1 + now % 2, [], 0.0)
    assert len(live.steps) <= MOST_STEPS
    assert live.integral(0.0, 2000.0) == pytest.approx(3000.0)
    assert live.integral(1900.0, 2000.0) == 150.0


def test_steps_before_the_oldest_app_are_forgotten():
    """But the number at its first submission is not."""
    live = LiveApps(())
    for now in range(10):
        live = live.after(float(now), now, [], min(now, 7.5))
    assert live.steps == ((7.0, 7), (8.0, 8), (9.0, 9))


def test_a_clock_that_goes_back_makes_no_step_before_the_last():
    """The last step has the newest number."""
    assert LiveApps(((0.0, 1), (10.0, 2))).after(5.0, 3, [], 0.0).steps == ((0.0, 1), (10.0, 3))
