"""The batch plan, and the order in which samples are trained."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer_shim.batch import plan_batch
from trainer_shim.data import Order, TrainLoader, micro_batches
from trainer_shim.errors import BatchError

worlds = st.integers(1, 9)
limits = st.none() | st.integers(1, 7)


@given(worlds, st.integers(0, 40), limits)
def test_shares(world, samples, limit):
    """Shares tile the batch, differ by one at most, and are cut into pieces within the limit that do too."""
    plan = plan_batch(40, world, limit)
    shares = [plan.share(rank, samples) for rank in range(world)]
    assert [position for share in shares for position in share] == list(range(samples))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for share in filter(len, shares):
        pieces = plan.micro_batches(share)
        assert [position for piece in pieces for position in piece] == list(share)
        assert min(map(len, pieces)) >= 1
        assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
        assert limit is None or max(map(len, pieces)) <= limit


@given(worlds, st.integers(9, 30), limits, st.integers(1, 100))
def test_weights(world, batch, limit, samples):
    """Averaged over the ranks, the weighted micro-batch means are the mean of each global batch."""
    plan = plan_batch(batch, world, limit)
    order, values = torch.arange(samples), torch.arange(samples, dtype=torch.float64).square()
    steps = -(-samples // batch)
    sums = [0.0] * steps
    for rank in range(world):
        step = 0
        for micro in micro_batches(order, 0, plan, rank):
            sums[step] += values[micro.indices].mean().item() * micro.weight / world
            step += micro.last
        assert step == steps
    assert sums == pytest.approx([chunk.mean().item() for chunk in values.split(batch)])


@given(st.lists(st.tuples(worlds, st.integers(0, 6), limits), min_size=1, max_size=5), st.integers(1, 80))
def test_every_sample_once(runs, samples):
    """Through any sequence of world sizes and stops, every sample of an epoch is trained exactly once."""
    order = Order(3, samples, shuffle=True).of_epoch(2)
    cursor, seen = 0, []
    for world, steps, limit in [*runs, (2, 1000, None)]:
        plan = plan_batch(9, world, limit)
        taken = 0
        for rank in range(world):
            done = advanced = 0
            for micro in micro_batches(order, cursor, plan, rank):
                if done == steps:
                    break
                seen += micro.indices[: micro.samples]
                done += micro.last
                advanced += micro.global_samples * micro.last
            taken = advanced
        cursor += taken
    assert cursor == samples
    assert sorted(seen) == list(range(samples))


def test_order():
    """An epoch's order depends on seed and epoch only; without shuffle it is the data set's."""
    order = Order(1, 100, shuffle=True)
    assert order.of_epoch(0).tolist() == Order(1, 100, shuffle=True).of_epoch(0).tolist()
    assert order.of_epoch(0).tolist() != order.of_epoch(1).tolist() != Order(2, 100, shuffle=True).of_epoch(1).tolist()
    assert Order(1, 4, shuffle=False).of_epoch(7).tolist() == [0, 1, 2, 3]


def test_plan_in_numbers():
    """A plan says what a GPU sees at most, and how often it accumulates."""
    plan = plan_batch(10, 3, 2)
    assert (plan.per_gpu_batch, plan.accumulation) == (2, 2)
    assert [len(plan.share(rank, 10)) for rank in range(3)] == [4, 3, 3]
    halved = plan_batch(10, 3, 3)  # four in two halves, but three at once
    assert (halved.per_gpu_batch, halved.accumulation) == (3, 2)


@pytest.mark.parametrize(("batch", "world", "limit", "word"), [(3, 4, None, "4 ranks"), (8, 4, 0, "max_per_gpu")])
def test_bad_plan(batch, world, limit, word):
    """A batch that cannot be split is an error that says why."""
    with pytest.raises(BatchError, match=word):
        plan_batch(batch, world, limit)


def test_steps_per_epoch():
    """A schedule counts the same steps at every world size, the partial one included."""
    loaders = [TrainLoader([], Order(0, 21, shuffle=True), plan_batch(10, world, None), iter, {}) for world in (1, 4)]
    assert [loader.steps_per_epoch for loader in loaders] == [3, 3]


def test_randomness_follows_the_position():
    """What torch draws for a micro-batch is the same whether the epoch began there or earlier."""
    loader = TrainLoader(list(range(20)), Order(5, 20, shuffle=True), plan_batch(4, 1, None), iter, {})

    def draws(cursor):
        return [torch.rand(()).item() for _ in loader.pairs(0, cursor, 0, lambda _: None)]

    assert draws(0)[2:] == draws(8)
    assert len(set(draws(0))) == 5
