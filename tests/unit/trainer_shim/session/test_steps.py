"""Trainings that count steps, in a single process: `ctx.steps`, `ctx.accumulate`, `ctx.weighted`."""

import json
import os
from unittest.mock import patch

import pytest
import torch

import trainer_shim
from trainer_shim.errors import BatchError, UsageError


@pytest.fixture
def start(tmp_path, trainer_process):
    """Start a context as a new trainer would; environment and process group are as before afterwards."""

    def begin(name="checkpoints"):
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        return trainer_shim.init(tmp_path / name)

    with patch.dict(os.environ):
        yield begin
    torch.distributed.destroy_process_group()


class Run:
    """A training of one weight by SGD; `trained` has the samples of each step."""

    def __init__(self, ctx, loader, **further):
        self.ctx, self.loader = ctx, loader
        self.net = torch.nn.Linear(1, 1).double()
        with torch.no_grad():
            self.net.weight.fill_(1.0)
            self.net.bias.zero_()
        self.model = ctx.wrap(self.net)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        ctx.track(model=self.model, optimizer=self.optimizer, **further)
        self.trained = {}

    def loss(self, x):
        return (self.model(x.double().reshape(-1, 1)) ** 2).mean() / 100


def train(ctx, loader, total, *, own_backward=False):
    run = Run(ctx, loader)
    for step in ctx.steps(total):
        run.trained[step] = []
        for x in loader:
            run.trained[step] += x.flatten().tolist()
            if own_backward:
                ctx.weighted(run.loss(x)).backward()
            else:
                ctx.backward(run.loss(x))
        if own_backward:
            run.optimizer.step()
            run.optimizer.zero_grad()
            assert ctx.step()
        else:
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 100.0)
            assert ctx.step(run.optimizer)
    return run


def lines(tmp_path, kind, generation=1):
    text = (tmp_path / "reports" / f"incarnation-{generation}.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if line["kind"] == kind]


def draw(samples):
    return torch.randint(1000, (samples, 1))


def test_steps_go_from_epoch_to_epoch(start, tmp_path):
    """Seven steps over a data set of four steps: each epoch has each sample once, and the length is declared."""
    ctx = start()
    run = train(ctx, ctx.loader(range(10), global_batch=3, max_per_gpu=2), 7)
    assert list(run.trained) == list(range(7))
    assert sorted(sample for step in range(4) for sample in run.trained[step]) == list(range(10))
    assert [len(samples) for samples in run.trained.values()] == [3, 3, 3, 1, 3, 3, 3]
    (declared,) = lines(tmp_path, "declare")
    assert (declared["total_steps"], declared["total_samples"]) == (7, 19)
    (end,) = lines(tmp_path, "end")
    assert (end["step"], end["samples"]) == (7, 19)


@pytest.mark.parametrize("data", ["random", "data set", "stream"])
def test_a_training_that_is_prolonged_continues(start, data):
    """Ended after three steps and started for seven, the training equals one of seven steps, bitwise."""

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(10))

    def make(ctx):
        if data == "random":
            return ctx.random_batches(draw, global_batch=4, seed=3, max_per_gpu=3)
        return ctx.loader(range(10) if data == "data set" else Stream(), global_batch=4, seed=3, max_per_gpu=3)

    first = start()
    before = train(first, make(first), 3)
    second = start()
    after = train(second, make(second), 7)
    assert list(before.trained) + list(after.trained) == list(range(7))
    whole = start("whole")
    undisturbed = train(whole, make(whole), 7)
    assert before.trained | after.trained == undisturbed.trained
    assert after.net.weight.item() == undisturbed.net.weight.item()


def test_a_finished_training_has_no_steps(start):
    """Started again with the same total, the loop has no step."""
    first = start()
    train(first, first.random_batches(draw, global_batch=4), 3)
    second = start()
    assert train(second, second.random_batches(draw, global_batch=4), 3).trained == {}
    assert second.step_count == 3


def test_a_backward_pass_of_the_script(start, tmp_path):
    """`weighted` gives the gradient of the mean over the global batch through uneven micro-batches, and the loss."""
    one = start()
    expected = train(one, one.loader(range(10), global_batch=5, max_per_gpu=3), 4)
    own = start("own")
    found = train(own, own.loader(range(10), global_batch=5, max_per_gpu=3), 4, own_backward=True)
    assert found.net.weight.item() == expected.net.weight.item()
    assert lines(tmp_path, "end")[-1]["loss"] is not None


@pytest.mark.parametrize("counts", ["steps", "epochs"])
def test_two_passes_over_a_step(start, counts):
    """Both passes have the same micro-batches and the same random numbers; an optimizer steps between them."""
    ctx = start()
    loader = ctx.loader(range(8), global_batch=4, max_per_gpu=3)
    other = torch.nn.Linear(1, 1)
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    run = Run(ctx, loader, other=ctx.wrap(other))
    steps = 0
    if counts == "steps":
        groups = (loader for _ in ctx.steps(3, passes=2))
    else:
        groups = (group for _ in ctx.epochs(2) for group in ctx.accumulate(loader, passes=2))
    for batches in groups:
        first = []
        for x in batches:
            first.append((x.tolist(), torch.rand(()).item()))
            ctx.backward(other(x.float().reshape(-1, 1)).mean())
        other_optimizer.step()
        other_optimizer.zero_grad()
        second = []
        for x in batches:
            second.append((x.tolist(), torch.rand(()).item()))
            ctx.backward(run.loss(x))
        assert ctx.boundary
        ctx.step(run.optimizer)
        assert first == second
        assert len(first) == 2
        with pytest.raises(UsageError, match="passes=3"):
            list(batches)
        steps += 1
    assert steps == (3 if counts == "steps" else 4)


def test_a_step_whose_loop_is_left_early(start):
    """The error names the loop."""
    ctx = start()
    loader = ctx.random_batches(draw, global_batch=4, max_per_gpu=2)
    Run(ctx, loader)
    steps = ctx.steps(2)
    next(steps)
    next(iter(loader))
    with pytest.raises(UsageError, match="loop over all of them"):
        next(steps)


def test_a_step_without_its_optimizer_step(start):
    """The error names `ctx.step`."""
    ctx = start()
    loader = ctx.random_batches(draw, global_batch=4)
    run = Run(ctx, loader)
    steps = ctx.steps(2)
    next(steps)
    for x in loader:
        ctx.backward(run.loss(x))
    with pytest.raises(UsageError, match=r"before ctx\.step"):
        next(steps)


def test_random_batches_have_no_epochs(start):
    """The error names `ctx.steps`."""
    ctx = start()
    loader = ctx.random_batches(draw, global_batch=4)
    Run(ctx, loader)
    with pytest.raises(UsageError, match=r"use ctx\.steps"):
        next(ctx.epochs(1))


@pytest.mark.parametrize("option", ["collate_fn", "drop_last", "shuffle", "batch_size"])
def test_options_without_a_meaning_for_random_batches(start, option):
    """The error names the option."""
    with pytest.raises(UsageError, match=option):
        start().random_batches(draw, global_batch=4, **{option: 1})


def test_micro_batches_of_pairs(start, tmp_path):
    """With multiple_of=2 all micro-batches are even, and the trainer declares the sizes at which they can be."""
    ctx = start()
    loader = ctx.loader(range(22), global_batch=10, max_per_gpu=4, multiple_of=2)
    run = Run(ctx, loader)
    sizes = []
    for _ in ctx.steps(3):
        for x in loader:
            sizes.append(len(x))
            ctx.backward(run.loss(x))
        ctx.step(run.optimizer)
    assert sizes == [4, 4, 2, 4, 4, 2, 2]
    (declared,) = lines(tmp_path, "declare")
    assert declared["sizes"] == [1, 2, 3, 4, 5]


def test_a_last_batch_that_is_no_multiple(start):
    """The error names drop_last."""
    with pytest.raises(BatchError, match="drop_last=True"):
        start().loader(range(21), global_batch=10, multiple_of=2)


def test_a_data_set_without_a_sample(start):
    """An empty stream is an error, and not an endless loop."""

    class Empty(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    ctx = start()
    with pytest.raises(UsageError, match="no sample"):
        train(ctx, ctx.loader(Empty(), global_batch=2), 1)
