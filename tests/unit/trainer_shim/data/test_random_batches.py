"""Random batches: the same global batches at every world size, split, number of workers and starting position."""

import collections
import itertools
import random
from typing import NamedTuple

import numpy as np
import pytest
import torch

from trainer_shim.batch import plan_batch
from trainer_shim.data.random_batches import DrawOrder, RandomSource, join_samples
from trainer_shim.errors import UsageError


class Pair(NamedTuple):
    """A sample of two parts."""

    x: dict
    y: list


def draw(samples):
    noise = random.random() + np.random.rand()  # noqa: NPY002, S311
    return torch.randint(1000, (samples, 3)), torch.full((samples,), noise, dtype=torch.float64)


def global_batches(size, max_per_gpu=None, cursor=0, steps=3, seed=4, **options):
    """The samples of some steps in the order of their positions, and the sums of their weights times samples."""
    plan, found = plan_batch(8, size, max_per_gpu), {}
    weights = collections.Counter()
    for rank in range(size):
        source = RandomSource(draw, DrawOrder(seed), plan, rank, options)
        micros = source.read_from(0, cursor)
        for micro, (numbers, noise) in itertools.islice(micros, steps * plan.accumulation):
            assert len(numbers) == len(micro.indices)
            assert micro.samples in (0, len(numbers))
            weights[micro.position // 8] += micro.weight / size
            for place in range(micro.samples):
                found[micro.position + place] = numbers[place].tolist(), noise[place].item()
    assert all(total == pytest.approx(1) for total in weights.values())
    return [found[position] for position in sorted(found)]


@pytest.mark.parametrize(("size", "max_per_gpu"), [(1, 3), (2, None), (3, 1), (5, 1), (8, None)])
def test_the_same_samples_at_every_size(size, max_per_gpu):
    """A sample's numbers from three generators depend on its position alone, through fillers and accumulation."""
    assert global_batches(size, max_per_gpu) == global_batches(1)


def test_the_same_samples_after_a_restart():
    """A read from a checkpoint's position on continues the row of samples."""
    assert global_batches(2, cursor=8, steps=2) == global_batches(1)[8:]


def test_the_same_samples_from_workers():
    """Loader workers draw the same samples as the trainer itself."""
    assert global_batches(1, num_workers=2) == global_batches(1)


def test_samples_differ():
    """Samples differ between positions and between seeds."""
    found = global_batches(1)
    assert len(set(map(str, found))) == 24
    assert not set(map(str, found)) & set(map(str, global_batches(1, seed=5)))


def test_nested_samples_are_joined():
    """Tuples, named tuples, lists, dicts and arrays of one sample are joined along their first dimension."""
    one = Pair({"a": torch.ones(1, 2)}, [np.zeros((1, 3))])
    joined = join_samples([one, one, one])
    assert joined.x["a"].shape == (3, 2)
    assert joined.y[0].shape == (3, 3)


@pytest.mark.parametrize(("drawn", "words"), [(torch.ones(4, 2), "4 samples"), (3.5, "float"), (torch.ones(()), "Te")])
def test_a_draw_of_another_form_is_refused(drawn, words):
    """The error says what the function returned."""
    with pytest.raises(UsageError, match=words):
        join_samples([drawn])
