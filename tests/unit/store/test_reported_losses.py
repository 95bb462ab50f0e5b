"""The losses that the store has of a job, after the reports of its trainers."""

import math

from hypothesis import given
from hypothesis import strategies as st

from metasched.core.apps import MOST_LOSS_POINTS, LossPoint
from metasched.shared_dir.reports import StepsReport, parse_line
from metasched.store.reported_losses import ReportedLosses

NOW = 1.8e9


def steps(step, loss=None, **more):
    return StepsReport(
        at=NOW,
        step=step,
        steps=1,
        samples=1,
        seconds=1.0,
        loss=loss,
        world_size=1,
        global_batch=1,
        per_gpu_batch=1,
        accumulation=1,
        **more,
    )


def after(*reports, adapts=False):
    return ReportedLosses().after(reports, adapts=adapts).points


def test_losses_ascend_in_progress():
    """Steps without a loss have no point; those that are done again after a lost run replace the first ones."""
    assert after(steps(1, 3.0), steps(2), steps(5, 2.0)) == (LossPoint(1.0, 3.0), LossPoint(5.0, 2.0))
    assert after(steps(1, 3.0), steps(5, 2.0), steps(4, 2.5)) == (LossPoint(1.0, 3.0), LossPoint(4.0, 2.5))
    assert after(steps(9, 1.0, progress=20.0), steps(10, 1.0), adapts=True) == (LossPoint(20.0, 1.0),)


def test_a_metric_replaces_the_losses():
    """From the first value on; one that is not finite says that the training has diverged."""
    points = after(steps(1, 3.0), steps(2, 2.9, metric=-0.5), steps(3, 2.8), steps(4, 2.7, metric=None))
    assert points[0] == LossPoint(2.0, -0.5)
    assert (len(points), math.isnan(points[1].loss)) == (2, True)
    assert math.isnan(after(steps(1, None, diverged=True))[0].loss)


def test_the_protocol_tells_no_metric_from_one_that_is_not_finite():
    """A line of an older shim has neither key."""
    line = (
        b'{"v": 1, "t": 1.8e9, "kind": "steps", "step": 1, "steps": 1, "samples": 1, "seconds": 1, "loss": null, '
        b'"world_size": 1, "global_batch": 1, "per_gpu_batch": 1, "accumulation": 1%s}'
    )
    keys = (b"", b', "metric": null', b', "metric": 2', b', "diverged": true')
    assert [len(after(parse_line(line % more, NOW))) for more in keys] == [0, 1, 1, 1]


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=400))
def test_points_are_few_and_the_newer_ones_closer_together(losses):
    """The last point is exact, and the mean over all steps stays what it was."""
    points = after(*(steps(number, loss) for number, loss in enumerate(losses, 1)))
    assert len(points) <= MOST_LOSS_POINTS
    assert points[-1] == LossPoint(float(len(losses)), losses[-1])
    widths = [b.progress_steps - a.progress_steps for a, b in zip((LossPoint(0, 0), *points), points, strict=False)]
    assert widths == sorted(widths, reverse=True)
    total = math.fsum(width * (point.loss / 1e10) for width, point in zip(widths, points, strict=True))
    assert math.isclose(total, math.fsum(loss / 1e10 for loss in losses), rel_tol=1e-6, abs_tol=1e284)


def test_the_last_metric_is_in_the_end():
    """It is the value after the last steps; the loss of the end is that of the last steps, which is known."""
    end = b'{"v": 1, "t": 1.8e9, "kind": "end", "step": 5, "samples": 5, "loss": 1.0%s}'
    with_metric, without = parse_line(end % b', "metric": -2', NOW), parse_line(end % b"", NOW)
    assert after(steps(5, 1.5, metric=-1.0), with_metric) == (LossPoint(5.0, -2.0),)
    assert after(steps(5, 1.5), without) == (LossPoint(5.0, 1.5),)
