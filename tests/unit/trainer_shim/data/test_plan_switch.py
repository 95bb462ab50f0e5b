"""A change of the batch plan within a pass over the data."""

import functools
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer_shim.batch import plan_batch
from trainer_shim.data.loader_factory import make_loader
from trainer_shim.data.plan_switch import PlanSwitch
from trainer_shim.data.sample_order import micro_batches

plans = st.tuples(st.integers(3, 30), st.none() | st.integers(1, 5))


@given(
    st.integers(1, 3),
    st.integers(1, 100),
    plans,
    st.lists(st.tuples(st.integers(0, 30), plans), max_size=3),
    st.data(),
)
def test_all_ranks_switch_together_and_lose_nothing(world, samples, first, changes, data):
    """However far each rank has requested ahead, all cut the pass alike, and every sample is trained once."""
    switches = [PlanSwitch(plan_batch(first[0], world, first[1])) for _ in range(world)]
    streams = [micro_batches(torch.arange(samples), 0, switch, rank) for rank, switch in enumerate(switches)]
    found = [[] for _ in range(world)]
    for _, (batch, limit) in changes:
        for rank, stream in enumerate(streams):
            found[rank] += itertools.islice(stream, data.draw(st.integers(0, 20)))
        plan = plan_batch(batch, world, limit)
        latest = max(switch._requested for switch in switches)
        for switch in switches:
            switch.switch(plan, functools.partial(max, latest))
    for rank, stream in enumerate(streams):
        found[rank] += stream
    assert len({tuple((micro.plan, micro.global_samples, micro.last) for micro in each) for each in found}) == 1
    trained = [index for each in found for micro in each for index in micro.indices[: micro.samples]]
    assert sorted(trained) == list(range(samples))
    assert not changes or latest == samples or found[0][-1].plan == plan


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_switch_in_a_loader(workers, drop_last):
    """A switch takes effect beyond what was requested; later reads begin with the new plan."""
    data = torch.utils.data.TensorDataset(torch.arange(50))
    loader = make_loader(
        data,
        iter,
        {"num_workers": workers, "drop_last": drop_last},
        seed=1,
        shuffle=True,
        plan=plan_batch(4, 1),
        rank=0,
    )
    assert loader.steps_per_epoch == (12 if drop_last else 13)
    sizes, seen = [], []
    for micro, (batch,) in loader.micro_batches(0, 0, lambda _: None):
        sizes.append(len(batch))
        seen += batch.tolist()
        if len(sizes) == 2:
            loader.switch(plan_batch(9, 1), lambda own: own)
        assert micro.plan.global_batch == 4 or len(sizes) > 2
    old = sizes.index(9)
    assert sizes[:old] == [4] * old
    assert old == 2 if workers == 0 else 2 < old < 10
    left = 50 - 4 * old
    assert sizes[old:] == [9] * (left // 9) + ([] if drop_last or not left % 9 else [left % 9])
    assert len(seen) == len(set(seen)) == sum(sizes)
    assert next(iter(loader.micro_batches(1, 0, lambda _: None)))[0].global_samples == 9
    assert loader.is_pass_over(50)
    assert loader.is_pass_over(46) == drop_last
    assert not loader.is_pass_over(41)
    assert loader.steps_per_epoch == (12 if drop_last else 13)
