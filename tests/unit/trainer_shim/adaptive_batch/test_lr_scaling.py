"""Rules for the learning rate at larger batches."""

import math
import re

import pytest
import torch

import trainer_shim
from trainer_shim.adaptive_batch.lr_scaling import LrScaling, ScalingInputs, scaled_learning_rates
from trainer_shim.errors import UsageError


def factor(rule, batch=128, noise=579.0, progress=0.0):
    """The rule's factor on the learning rate of a step, M0 being 32."""
    return LrScaling(rule).factor(ScalingInputs(32, batch, noise, progress))


def step_at(optimizer, times):
    """An optimizer step at a multiple of the learning rates."""
    with scaled_learning_rates([optimizer], times):
        optimizer.step()


def test_rules():
    """AdaScale is the gain, the others do not know the noise; all are 1 at M0."""
    assert factor("adascale") == pytest.approx((579 / 32 + 1) / (579 / 128 + 1))
    assert factor("adascale", noise=None) == 1
    assert factor("adascale", noise=0.0) == 1
    assert factor("adascale", noise=math.inf) == 4
    assert factor("linear") == 4
    assert factor("sqrt") == 2
    assert [factor(rule, batch=32) for rule in ("adascale", "linear", "sqrt")] == [1, 1, 1]


def test_legw():
    """The square root, with a warm-up that is longer by M/M0 at a larger batch."""
    rule = trainer_shim.legw(warmup_steps=10)
    assert factor(rule, progress=39.0) == factor(rule, progress=1000.0) == 2
    assert factor(rule, progress=19.0) == 1
    assert factor(rule, batch=32, progress=4.0) == 0.5
    assert factor(trainer_shim.legw(0)) == 2


def test_a_function_of_the_script():
    """A function gets what is known of the step."""
    seen = []
    assert factor(lambda step: seen.append(step) or 1.5, noise=None, progress=7.0) == 1.5
    assert seen == [trainer_shim.ScalingInputs(first_batch=32, batch=128, noise_scale=None, progress=7.0)]


@pytest.mark.parametrize("rule", ["adamscale", 3, None])
def test_unknown_rules(rule):
    """The message names the rule, and those that exist."""
    with pytest.raises(UsageError, match=f"lr_scale={rule!r}.*(adascale, linear, sqrt|function)"):
        LrScaling(rule)


@pytest.mark.parametrize(
    ("answer", "said"),
    [(math.nan, "nan"), (math.inf, "inf"), (0.0, r"0\.0"), (-2.0, r"-2\.0"), (None, "TypeError"), ("x", "ValueError")],
)
def test_a_rule_that_fails(answer, said, caplog):
    """The last valid factor stays, one error names the rule and its answer, and the batch must not grow."""
    answers = iter([1.5, answer, 3.0])

    def own_rule(_):
        return next(answers)

    scaling = LrScaling(own_rule)
    inputs = ScalingInputs(32, 128, None, 0.0)
    assert [scaling.factor(inputs) for _ in range(3)] == [1.5, 1.5, 1.5]
    assert scaling.failed
    assert len(caplog.records) == 1
    assert caplog.records[0].levelname == "ERROR"
    message = caplog.records[0].getMessage()
    assert re.search(f"own_rule .* {said}.*a finite number above 0", message)


def test_a_rule_that_raises(caplog):
    """An exception of the rule does not end the training."""

    def own_rule(_):
        raise ArithmeticError("too large")

    scaling = LrScaling(own_rule)
    assert scaling.factor(ScalingInputs(32, 128, None, 0.0)) == 1
    assert scaling.failed
    assert "own_rule for the learning rate has raised ArithmeticError('too large') at batch 128" in caplog.text


def test_the_factor_lasts_one_step():
    """Each group has its own rate in the step, and afterwards the very object that it had, also after an error."""
    rate = torch.tensor(0.25)
    weights = [torch.nn.Parameter(torch.zeros(())) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [weights[0]], "lr": 0.1}, {"params": [weights[1]], "lr": 0.5}])
    optimizer.param_groups[1]["lr"] = rate
    for weight in weights:
        weight.grad = torch.ones(())
    optimizer.register_step_post_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        step_at(optimizer, 3.0)
    assert [weight.item() for weight in weights] == pytest.approx([-0.3, -0.75])
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.param_groups[1]["lr"] is rate
    assert rate.item() == 0.25
