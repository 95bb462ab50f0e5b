"""The first steps of a script with the shim beside those of the plain script."""

import pytest

from trainer_shim.rehearse.compare import Verdict
from trainer_shim.rehearse.plain import FirstStep, compare_with_plain, plain_causes

PLAIN = [FirstStep(loss, 2.0, 0.1) for loss in (2.3, 2.2, 2.4, 2.1)]


def scaled(loss=1.0, gradient=1.0, lr=1.0):
    return [FirstStep(step.loss * loss, step.gradient * gradient, step.lr * lr) for step in PLAIN]


def test_other_samples_are_no_difference():
    """Losses and gradients that vary with the data are alike."""
    elastic = [step._replace(loss=step.loss * 1.1, gradient=step.gradient * 0.8) for step in PLAIN]
    assert {check.verdict for check in compare_with_plain(PLAIN, elastic)} == {Verdict.TOLERANCE}
    assert plain_causes(PLAIN, elastic) == []


@pytest.mark.parametrize(
    ("elastic", "differing", "words"),
    [
        (
            scaled(loss=0.25, gradient=0.25),
            {"loss", "gradient"},
            "about 1/4: a division by the number of micro-batches",
        ),
        (scaled(loss=8, gradient=8), {"loss", "gradient"}, "it is a sum over samples"),
        (scaled(gradient=0.1), {"gradient"}, "clipping, a scaler's unscale_ or zero_grad()"),
        (scaled(lr=2), {"learning rate"}, "scaled by the number of GPUs"),
    ],
)
def test_factors_are_named(elastic, differing, words):
    """A factor in the loss, in the gradient or in the learning rate differs, and its likely cause is named."""
    found = {check.name for check in compare_with_plain(PLAIN, elastic) if check.verdict is Verdict.DIFFERS}
    assert found == {f"{name} beside the plain script" for name in differing}
    (cause,) = plain_causes(PLAIN, elastic)
    assert words in cause
