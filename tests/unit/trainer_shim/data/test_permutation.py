"""The seekable permutation of a data set's indices."""

import math
from collections import Counter

import pytest
import torch

from trainer_shim.data.permutation import LARGEST_SIZE, Permutation
from trainer_shim.data.sample_order import SampleOrder, order_difference

SHUFFLED = {"seed": 1, "size": 9, "shuffle": True}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 9, 15, 25, 203, 4095, 4096, 4097, 70001])
def test_every_number_once(size):
    """A permutation has every number below its size exactly once."""
    assert Permutation(size, 1).at(torch.arange(size)).sort().values.tolist() == list(range(size))


@pytest.mark.parametrize("size", [10**9, LARGEST_SIZE])
def test_any_part_of_a_large_permutation(size):
    """Single positions have the indices that they have among others, also in a data set that fits in no memory."""
    positions = torch.tensor([0, 1, 2, size // 3, size - 2, size - 1])
    found = Permutation(size, 1).at(positions)
    assert len(set(found.tolist())) == len(positions)
    assert 0 <= found.min() <= found.max() < size
    assert found.max() > size // 10
    assert [Permutation(size, 1).at(each).item() for each in positions] == found.tolist()


@pytest.mark.parametrize("size", [0, LARGEST_SIZE + 1])
def test_impossible_sizes(size):
    """Sizes beyond the arithmetic's range are an error."""
    with pytest.raises(ValueError, match="are possible"):
        Permutation(size, 1)


def chi_square_excess(counts, expected):
    """The chi-square statistic of all counts, as standard deviations above its mean."""
    freedom = len(counts) - 1
    statistic = sum((count - expected) ** 2 / expected for count in counts)
    return (statistic - freedom) / math.sqrt(2 * freedom)


def test_all_permutations_of_few_numbers_are_as_frequent():
    """Over many seeds, each of the 24 permutations of four numbers occurs equally often."""
    numbers = torch.arange(4)
    found = Counter(tuple(Permutation(4, seed).at(numbers).tolist()) for seed in range(480))
    assert len(found) == 24
    assert abs(chi_square_excess(found.values(), 20)) < 4


def test_positions_and_neighbours_are_uniform():
    """In a large permutation, indices and differences of neighbours are spread evenly, in any part."""
    size = 3 * 10**8
    for start in (0, size // 2):
        found = Permutation(size, 7).at(torch.arange(start, start + 20001))
        for values in (found[1:], (found[1:] - found[:-1]) % size, found[1:] % 100 * (size // 100)):
            counts = torch.bincount(values // (size // 100), minlength=100)[:100].tolist()
            assert abs(chi_square_excess(counts, 200)) < 4


def test_neighbours_of_epochs_are_uniform():
    """The positions of one sample in two epochs are unrelated."""
    size = 3 * 10**8
    positions = torch.arange(20000)
    first, second = (Permutation(size, 7, epoch).at(positions) for epoch in (0, 1))
    counts = torch.bincount((first - second) % size // (size // 100), minlength=100)[:100].tolist()
    assert abs(chi_square_excess(counts, 200)) < 4


@pytest.mark.parametrize("shuffle", [True, False])
def test_slices_of_an_epoch(shuffle):
    """A slice of an epoch's order has the same indices, however the order was read before."""
    whole = SampleOrder(3, 10000, shuffle).epoch_indices(4)
    order = SampleOrder(3, 10000, shuffle).epoch_order(4)
    for start, stop in [(0, 3), (8190, 8200), (8190, 9999), (1, 9000), (8191, 8192), (9990, 20000), (7, 7), (0, 1)]:
        assert order[start:stop].tolist() == whole[start:stop].tolist()


def test_an_empty_data_set_has_an_empty_order():
    """A data set without samples has an order, too."""
    assert SampleOrder(1, 0, shuffle=True).epoch_indices(0).tolist() == []


def test_order_on_another_default_device():
    """The order is computed on the CPU whatever default device a script has chosen."""
    with torch.device("meta"):
        assert SampleOrder(1, 5, shuffle=True).epoch_order(0)[0:5].sort().values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (SHUFFLED, "version 1 of the shuffled order"),
        ({**SHUFFLED, "version": 3}, "version 3 of the shuffled order"),
        ({**SHUFFLED, "seed": 2}, "use another checkpoint directory"),
        ({**SHUFFLED, "version": 2}, None),
    ],
)
def test_orders_of_other_versions(saved, words):
    """A position in a shuffled order of another version is refused, with the way out."""
    found = order_difference(saved, SampleOrder(1, 9, shuffle=True)._asdict())
    assert found is None if words is None else words in found


def test_the_order_of_the_data_set_has_no_versions():
    """A checkpoint of an earlier version whose samples were not shuffled is continued, at the same size only."""
    saved = {"seed": 1, "size": 9, "shuffle": False}
    assert order_difference(saved, SampleOrder(1, 9, shuffle=False)._asdict()) is None
    assert order_difference(saved, SampleOrder(1, 8, shuffle=False)._asdict()) is not None
    assert order_difference(saved, SampleOrder(1, 9, shuffle=True)._asdict()) is not None
