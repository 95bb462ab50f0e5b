import math

import pytest

from metasched.core.apps import LossPoint
from metasched.scheduling.engine import run_round
from policies.baselines.slaq import Slaq, fitted_curve
from tests.builders import job, linear, nodes, running, snapshot


def losses(drop, exponent=0.5, floor=0.1, until=1000):
    """A power law, reported at powers of two."""
    steps = [2.0**power for power in range(int(math.log2(until)) + 1)]
    return tuple(LossPoint(one, floor + drop * one**-exponent) for one in steps)


def trial(uid, points, **fields):
    done = points[-1].progress_steps if points else 0.0
    return job(uid, 1, 1, 4, speed=linear(1.0), losses=points, total_steps=1e6, progress_steps=done, **fields)


def amounts(*jobs, the_nodes=None):
    targets = run_round(snapshot(jobs, the_nodes or nodes(1, 4)), Slaq(), None).targets
    return {uid: place.gpus for uid, place in targets.items()}


def test_gpus_go_where_the_loss_falls_most():
    """A job at the start of its curve gets them before one whose curve is flat."""
    assert amounts(trial("new", losses(1.0, until=8)), trial("old", losses(1.0, until=100_000))) == {"new": 4}


def test_losses_of_different_scale_compare():
    """A hundredfold loss counts no more: the curves are alike, and so are the GPUs."""
    small, large = losses(1.0, until=8), losses(100.0, floor=10.0, until=8)
    assert amounts(trial("a", small), trial("b", large)) == {"a": 2, "b": 2}


def test_a_job_without_losses_gets_its_minimum_first():
    """It gets no more, because nothing is known of what more would bring."""
    assert amounts(trial("silent", ()), trial("new", losses(1.0, until=8))) == {"silent": 1, "new": 3}


def test_running_jobs_come_first_among_equals():
    """Equal falls do not stop one job for another."""
    one = running(trial("b", losses(1.0, until=8)), "v100-0")
    assert amounts(trial("a", losses(1.0, until=8)), one, the_nodes=nodes(1, 1)) == {"b": 1}


def test_the_curve_is_found():
    """The fit predicts what the curve does next, in parts of the largest fall."""
    points = losses(2.0, exponent=0.5)
    curve = fitted_curve(points, 0.9)
    expected = 2.0 * (512.0**-0.5 - 1024.0**-0.5) / (points[0].loss - points[-1].loss)
    assert curve.fall(512.0, 512.0) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(
    "points",
    [
        (),
        losses(1.0, until=2),
        tuple(LossPoint(steps, 1.0) for steps in (1.0, 2.0, 4.0)),
        tuple(LossPoint(steps, math.nan) for steps in (1.0, 2.0, 4.0)),
        tuple(LossPoint(steps, math.inf) for steps in (1.0, 2.0, 4.0)),
    ],
)
def test_no_curve_without_a_fall(points):
    """Too few losses, losses that do not fall, or that are no numbers."""
    assert fitted_curve(points, 0.9) is None
