"""A training whose batch adapts, in a single process: what scripts give, and what they see."""

import json
import math
import os
from unittest.mock import patch

import pytest
import torch

import trainer_shim
from trainer_shim.errors import BatchError, UsageError
from trainer_shim.session import trainer_session, vote_interval

PLAN = {"plan": 1, "per_gpu": 8, "accumulation": 2, "theta": None}


@pytest.fixture
def lease(tmp_path, monkeypatch):
    """Write the lease with a batch plan, which is read before each vote; there is one after each step."""
    path = tmp_path / "lease.json"
    monkeypatch.setenv("METASCHED_LEASE", str(path))
    monkeypatch.setenv("METASCHED_RUN", "1")
    monkeypatch.setattr(trainer_session, "POLL_INTERVAL", 0.0)
    monkeypatch.setattr(vote_interval, "TARGET_SECONDS", 0.0)

    def write(batch):
        partial = tmp_path / "partial"
        partial.write_text(json.dumps({"format": 1, "run": 1, "stop": None, "batch": batch}))
        partial.replace(path)

    write({"plan": 0})
    return write


@pytest.fixture
def ctx(tmp_path, trainer_process, lease):
    """The context of a new trainer."""
    with patch.dict(os.environ):
        yield trainer_shim.init(tmp_path / "checkpoints")
    torch.distributed.destroy_process_group()


class Training:
    """A model with an optimizer, in a training of 8 samples at first, of 64."""

    def __init__(self, ctx, make=None, samples=64, **options):
        torch.manual_seed(4)
        self.ctx = ctx
        self.model = ctx.wrap(torch.nn.Linear(5, 1))
        make = make or (lambda parameters: torch.optim.SGD(parameters, lr=0.01))
        self.optimizer = make(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda _: 1.0)
        options = {"max_batch": 32, "max_per_gpu": 8, "lr_scale": "sqrt"} | options
        self.loader = ctx.loader(torch.randn(samples, 5), global_batch=8, **options)
        ctx.track(model=self.model, optimizer=self.optimizer, schedule=self.schedule)
        self.sizes = []

    def steps(self, epochs):
        """Train, and yield the epoch after each step."""
        size = 0
        for epoch in self.ctx.epochs(epochs):
            for x in self.loader:
                size += len(x)
                self.ctx.backward((self.model(x) - torch.randn(len(x), 1)).square().mean())
                if self.ctx.step(self.optimizer):
                    self.schedule.step()
                    self.sizes.append(size)
                    size = 0
                    yield epoch


def declared(tmp_path):
    lines = (tmp_path / "reports" / "incarnation-1.jsonl").read_text().splitlines()
    return next(line for line in map(json.loads, lines) if line["kind"] == "declare")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_batch": 7}, BatchError, "max_batch is 7, less than global_batch, 8: raise it"),
        ({"max_batch": None}, UsageError, "needs both"),
        ({"lr_scale": None}, UsageError, "needs both"),
        ({"lr_scale": "adam"}, UsageError, "one of adascale, linear, sqrt, trainer_shim.legw"),
        ({"max_per_gpu": 0}, BatchError, "max_per_gpu is 0"),
    ],
)
def test_bad_arguments(ctx, options, error, message):
    """Each is named with its fix, before the first step."""
    with pytest.raises(error, match=message):
        Training(ctx, **options)


def test_a_stream_does_not_adapt(ctx):
    """The batches of a stream are refused in words."""
    with pytest.raises(UsageError, match="the batches of a stream do not adapt"):
        ctx.loader(iter([]), global_batch=8, max_batch=16, lr_scale="sqrt")


def test_a_plan_is_used_without_a_restart(ctx, lease, tmp_path):
    """The step after the vote has the new batch; the schedule has followed the progress, and the rate is restored."""
    training = Training(ctx)
    for _ in training.steps(6):
        assert training.optimizer.param_groups[0]["lr"] == 0.01
        if ctx.step_count == 12:
            lease(PLAN)
    change = training.sizes.index(16)
    assert 12 <= change <= 14
    assert training.sizes[:change] == [8] * change
    assert set(training.sizes[change:]) <= {16, 8}  # 8 samples may be left at the end of a pass
    assert 48 <= ctx.progress < 50
    assert training.schedule.last_epoch == 48
    assert ctx.step_count == len(training.sizes)
    assert declared(tmp_path)["adaptive"]


def test_an_epoch_goes_on_over_passes_and_may_be_left(ctx, lease):
    """Epochs have as many steps at M0 as a pass, however many passes they take; one that is left early has fewer."""
    lease(PLAN)
    training = Training(ctx, lr_scale="adascale")
    ends, passes = [], set()
    for epoch in ctx.epochs(3):
        for x in training.loader:
            ctx.backward((training.model(x) - torch.randn(len(x), 1)).square().mean())
            if ctx.step(training.optimizer):
                passes.add((epoch, ctx._position.progress.adaptive.data_pass))
                if epoch == 1 and ctx.progress > ends[0] + 3:
                    break
        ends.append(ctx.progress)
    assert 8 <= ends[0] < 10
    assert ends[0] + 3 < ends[1] < ends[0] + 6
    assert ends[1] + 8 <= ends[2] < ends[1] + 10
    assert min(number for epoch, number in passes if epoch == 2) > max(n for epoch, n in passes if epoch == 1)


def test_the_factor_holds_for_the_step_alone(ctx, lease):
    """With a function of the script the optimizer steps at its multiple of the rate."""
    lease(PLAN)
    seen = []

    def triple(step):
        seen.append(step)
        return 3.0 if step.batch > step.first_batch else 1.0

    training, rates = Training(ctx, samples=72, lr_scale=triple), []  # the last batch of a pass has 8 samples
    training.optimizer.register_step_pre_hook(lambda *_: rates.append(training.optimizer.param_groups[0]["lr"]))
    list(training.steps(2))
    assert rates == pytest.approx([0.03 if size > 8 else 0.01 for size in training.sizes])
    assert {(step.first_batch, step.batch) for step in seen} == {(8, 8), (8, 16)}
    assert seen[0].noise_scale is None


@pytest.mark.parametrize("answer", [math.nan, "raise"])
def test_a_rule_that_fails_returns_to_m0(ctx, lease, caplog, answer):
    """Nothing is lost: the error is named, the batch returns to M0, and the training ends after its epochs."""
    lease(PLAN)

    def broken(step):
        if step.batch == step.first_batch:
            return 1.0
        return 1 / 0 if answer == "raise" else answer

    training = Training(ctx, lr_scale=broken)
    list(training.steps(4))
    assert 16 in training.sizes
    assert training.sizes[-8:] == [8] * 8
    assert caplog.text.count("the rule broken for the learning rate has") == 1
    assert ctx.progress >= 32


def test_an_optimizer_whose_noise_is_not_known(ctx, lease, caplog):
    """The trainer says so, and its batch stays at M0."""
    lease(PLAN)
    training = Training(ctx, torch.optim.Adadelta)
    list(training.steps(2))
    assert training.sizes == [8] * 16
    assert "the preconditioner of Adadelta is not known" in caplog.text


@pytest.mark.parametrize("consents", [True, False])
def test_one_consent_is_not_enough(ctx, lease, caplog, consents, tmp_path):
    """The tag alone, and the script alone, change nothing, and the log names the other."""
    lease(None if consents else PLAN)
    training = Training(ctx, **({} if consents else {"max_batch": None, "lr_scale": None}))
    list(training.steps(2))
    assert training.sizes == [8] * 16
    assert declared(tmp_path).get("adaptive") == (False if consents else None)
    assert consents or "give ctx.loader(..., max_batch=..., lr_scale=...)" in caplog.text


def test_the_noise_is_measured(ctx, tmp_path):
    """The reports have the two parts of the noise, of the unclipped gradients."""
    training = Training(ctx, samples=512)
    for _ in training.steps(4):
        torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1e-3)
    assert training.sizes == [8] * 256
    averages = ctx._position.adaptation._averages
    assert averages.noise_scale > 0
    lines = (tmp_path / "reports" / "incarnation-1.jsonl").read_text().splitlines()
    last = [line for line in map(json.loads, lines) if line["kind"] == "steps"][-1]
    assert last["grad_variance"] == pytest.approx(averages.grad_variance)
    assert (last["progress"], last["plan"]) == (256, 0)
    ended = json.loads(lines[-1])
    assert (ended["kind"], ended["progress"]) == ("end", 256.0)
