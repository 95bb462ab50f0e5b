"""A training whose script changes its batch by a rule of its own, in a single process."""

import json
import os
from unittest.mock import patch

import pytest
import torch

import trainer_shim
from tests.unit.trainer_shim.session.test_batch_adaptation import Training
from trainer_shim.adaptive_batch import noise_averages
from trainer_shim.adaptive_batch.adapt import BatchRule
from trainer_shim.errors import BatchError, UsageError
from trainer_shim.session import vote_interval


@pytest.fixture
def ctx(tmp_path, trainer_process, monkeypatch):
    """The context of a new trainer, with a vote after each step."""
    monkeypatch.setattr(vote_interval, "TARGET_SECONDS", 0.0)
    with patch.dict(os.environ):
        yield trainer_shim.init(tmp_path / "checkpoints")
    torch.distributed.destroy_process_group()


class Listed(BatchRule):
    """The batches that a test names, one for each window; it notes what it sees."""

    name = "gns"

    def __init__(self, *batches, every=1.0):
        super().__init__(every)
        self.batches = list(batches)
        self.seen = []

    def choose(self, window):
        self.seen.append(window)
        return self.batches.pop(0) if self.batches else window.batch


def report(tmp_path):
    return [json.loads(line) for line in (tmp_path / "reports" / "incarnation-1.jsonl").read_text().splitlines()]


def train(training, epochs=3):
    for _ in training.steps(epochs):
        pass
    return training.sizes


def test_the_batch_changes_between_epochs(ctx, tmp_path):
    """Each epoch is one pass; progress, schedule and total count steps at M0, and the rate follows the batch."""
    ctx.adapts(Listed(32, 16), regimes=3)
    training = Training(ctx, samples=67)
    rates = []
    training.optimizer.register_step_pre_hook(lambda *_: rates.append(training.optimizer.param_groups[0]["lr"]))
    assert train(training) == [8] * 8 + [3] + [32, 32, 3] + [16] * 4 + [3]
    assert ctx.progress == training.schedule.last_epoch == 27
    assert rates == pytest.approx([0.01] * 9 + [0.02] * 2 + [0.01] + [0.01 * 2**0.5] * 4 + [0.01])
    declared = next(line for line in report(tmp_path) if line["kind"] == "declare")
    assert (declared["adapts"], declared["regimes"], declared["adaptive"]) == ("gns", 3, False)
    assert (declared["total_steps"], declared["global_batch"], declared["max_batch"]) == (27, 8, 32)


def test_a_change_is_reported_at_once(ctx, tmp_path):
    """The steps of one batch are reported before those of the next, whose first step is a line of its own."""
    ctx.adapts(Listed(16, 32))
    train(Training(ctx))
    lines = [line for line in report(tmp_path) if line["kind"] == "steps"]
    assert [line["global_batch"] for line in lines[-5:]] == [8, 16, 16, 32, 32]
    assert [line["progress"] for line in lines[-5:]] == [8.0, 10.0, 16.0, 20.0, 24.0]


def test_a_window_may_end_within_an_epoch(ctx):
    """The pass goes on with the new batch, and trains each sample once."""
    ctx.adapts(Listed(16, 32, 8, every=0.25))
    training = Training(ctx)
    assert train(training, 1) == [8, 8, 16, 32]
    assert ctx.progress == 8.0


def test_a_rule_sees_measurements(ctx, monkeypatch):
    """The norm of the gradient of this window and of the last one, and the noise scale once it is known."""
    monkeypatch.setattr(noise_averages, "KNOWN_WEIGHT", 0.01)
    rule = Listed(every=4.0)
    ctx.adapts(rule)
    train(Training(ctx, lambda parameters: torch.optim.SGD(parameters, lr=0.001)), 12)
    first, second = rule.seen
    assert (first.epoch, second.epoch) == (4.0, 8.0)
    assert first.last_grad_norm is None
    assert second.last_grad_norm == first.grad_norm > 0
    assert first.noise_scale > 0
    assert (first.first_batch, first.max_batch, first.batch, first.rate_factor) == (8, 32, 8, 1.0)


def test_a_falling_rate_is_seen_before_the_next_epoch(ctx):
    """Schedules that are stepped between the epochs count for the window that follows."""
    rule = Listed()
    ctx.adapts(rule)
    training = Training(ctx)
    for epoch in ctx.epochs(4):
        for x in training.loader:
            ctx.backward((training.model(x) - torch.randn(len(x), 1)).square().mean())
            ctx.step(training.optimizer)
        training.optimizer.param_groups[0]["lr"] = 0.01 if epoch == 0 else 0.001
    assert [round(window.rate_factor, 6) for window in rule.seen] == [1.0, 0.1, 1.0]


def test_an_epoch_that_is_left_early(ctx):
    """The next one has a pass of its own, and a whole epoch of progress."""
    ctx.adapts(trainer_shim.BatchSchedule({1: 16}))
    training = Training(ctx)
    ends = []
    for epoch in ctx.epochs(3):
        for x in training.loader:
            ctx.backward((training.model(x) - torch.randn(len(x), 1)).square().mean())
            if ctx.step(training.optimizer) and epoch == 0 and ctx.progress == 3:
                break
        ends.append(ctx.progress)
    assert ends == [3.0, 11.0, 19.0]


def test_limits_hold(ctx, tmp_path):
    """A batch of a rule beyond them is the nearest one that they allow; so it is declared."""
    ctx.adapts(trainer_shim.BatchSchedule({1: 4, 2: 1000}))
    assert max(train(Training(ctx))) == 32
    declared = next(line for line in report(tmp_path) if line["kind"] == "declare")
    assert declared["schedule"] == [[8, 0], [32, 16]]
    assert declared["regimes"] == 2


def test_a_failing_rule_for_the_rate_returns_the_batch_to_the_first_one(ctx):
    """The training goes on."""
    ctx.adapts(Listed(16, 32))
    assert set(train(Training(ctx, lr_scale=lambda _: float("nan")))) == {8}


def test_static_says_that_nothing_changes(ctx, tmp_path):
    """The declaration alone differs."""
    ctx.adapts("static")
    assert set(train(Training(ctx, max_batch=None, lr_scale=None))) == {8}
    declared = next(line for line in report(tmp_path) if line["kind"] == "declare")
    assert (declared["adapts"], declared["regimes"]) == ("static", 1)


def test_misuse_is_named_with_its_fix(ctx):
    """Before the first step."""
    with pytest.raises(UsageError, match="one of the names accordion, gns and static"):
        ctx.adapts("schedule")
    with pytest.raises(UsageError, match="a training has at least one"):
        ctx.adapts("gns", regimes=0)
    ctx.adapts("gns")
    with pytest.raises(UsageError, match="names one rule, once"):
        ctx.adapts("gns")
    with pytest.raises(
        UsageError, match=r"NoiseScale\(\.\.\.\)\) needs the largest batch and the rule for the learning"
    ):
        train(Training(ctx, max_batch=None, lr_scale=None))


def test_more_ranks_than_the_first_batch_are_refused(ctx):
    """The batch must be the same at every number of ranks."""
    ctx.adapts("gns")
    training = Training(ctx)
    training.loader.first_batch = 0
    with pytest.raises(BatchError, match="fewer samples than the 1 ranks"):
        train(training)
