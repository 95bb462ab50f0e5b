"""What a rehearsal blames for a difference that leaves no other trace."""

import pytest

from trainer_shim.rehearse.causes import likely_causes
from trainer_shim.rehearse.compare import compare
from trainer_shim.rehearse.history import History, Step
from trainer_shim.rehearse.plan import Start

TOLERANCE = 3.5e-4


def history(starts, resumed_from, losses):
    """A run of `losses`, whose starts have these sizes and begin after these steps."""
    steps = {
        number: Step(0, [number], loss, [0.1], sum(begin < number for begin in resumed_from))
        for number, loss in enumerate(losses, start=1)
    }
    return History([Start(size, None) for size in starts], resumed_from, steps, None, {}, [], {})


def blamed(undisturbed, disturbed):
    """The only cause that is found."""
    (cause,) = likely_causes(undisturbed, disturbed, compare(undisturbed, disturbed, TOLERANCE), TOLERANCE)
    return cause


@pytest.mark.parametrize(
    ("sizes", "gaps", "words"),
    [
        ([1, 2], [0, 0, 1e-8, 0.1, 0.2], "gradient of a step depends on the world size: the first step of start 2"),
        ([1, 2], [0, 0, 1e-8, 1e-7, 0.2], "begins as rounding (at step 3) and grows"),
        ([2, 2], [0, 0, 1e-8, 0.1, 0.2], "begins as rounding (at step 3) and grows"),
        ([1, 2], [0, 0, 0.1, 0.2, 0.2], "not in ctx.track"),
    ],
)
def test_the_first_steps_at_another_size(sizes, gaps, words):
    """A loss gap from the second step at a new world size on is an error of the gradient, not growing rounding."""
    undisturbed = history(sizes[:1], [0], [1.0] * len(gaps))
    disturbed = history(sizes, [0, 2], [1 + gap for gap in gaps])
    assert words in blamed(undisturbed, disturbed)


def test_losses_that_the_shim_never_sees():
    """The cause for a script that never calls `ctx.backward` is that call, where the world size changes."""
    undisturbed, disturbed = (
        run._replace(
            steps={number: step._replace(indices=[]) for number, step in run.steps.items()},
            state={"model": {"weight": weight}},
        )
        for run, weight in ((history([1], [0], [0.0] * 4), 1.0), (history([1, 2], [0, 2], [0.0] * 4), 2.0))
    )
    assert "never calls ctx.backward(loss)" in blamed(undisturbed, disturbed)


@pytest.mark.parametrize(
    ("remarks", "batches", "words"),
    [
        (["clipping: clip_grad_norm_"], (8, 8), "clip_grad_norm_ is called after micro-batches"),
        (["averaging: update_parameters"], (8, 8), "update_parameters where ctx.step(optimizer) has returned True"),
        ([], (8, 16), "The global batch changes with the world size (8, 16)"),
    ],
)
def test_mistakes_that_show_in_the_records(remarks, batches, words):
    """Clipping and averaging within a global batch, and another global batch, are named."""
    undisturbed = history([1], [0], [1.0] * 4)
    disturbed = history([1, 2], [0, 2], [1.0, 1.0, 1.1, 1.2])._replace(remarks=remarks, global_batches=batches)
    assert words in blamed(undisturbed, disturbed)
