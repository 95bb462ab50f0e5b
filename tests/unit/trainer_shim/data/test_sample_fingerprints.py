"""Fingerprints of samples: what counts as another sample, and which data sets cannot be compared."""

import random

import numpy as np
import pytest
import torch

from trainer_shim.data.sample_fingerprints import differing, fingerprint, fingerprint_samples

IMAGE = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(1))


class Data(torch.utils.data.Dataset):
    def __init__(self, sample, size=40):
        self.sample = sample
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.sample(index)


def take(sample, size=40, **options):
    return fingerprint_samples(Data(sample, size), size, 5, options)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        ("cat", "dog"),
        ((IMAGE, 1), (IMAGE, 2)),
        ((IMAGE, 1), (IMAGE.flip(2), 1)),
        (IMAGE, IMAGE[:2]),
        (IMAGE, IMAGE.double()),
        ({"ids": torch.arange(9)}, {"ids": torch.arange(9).flip(0)}),
        (np.arange(9), np.arange(9) + 1),
        ([1, 2.0], [1, 2.5]),
        (None, 0),
    ],
)
def test_other_samples_differ(one, other):
    """Samples with other numbers, words or shapes have other fingerprints; the same sample has the same."""
    assert fingerprint(one).matches(fingerprint(one))
    assert not fingerprint(one).matches(fingerprint(other))


@pytest.mark.parametrize("sample", [IMAGE, (IMAGE * 255).to(torch.uint8), IMAGE.numpy()])
def test_rounding_is_no_difference(sample):
    """Hosts that round differently have the same samples, and numbers that are not finite are no difference."""
    shifted = sample + 1 if sample.dtype == torch.uint8 else sample * (1 + 1e-6)
    assert fingerprint(sample).matches(fingerprint(shifted))
    nan = torch.full((3,), torch.nan)
    assert fingerprint(nan).matches(fingerprint(nan))


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
def test_random_augmentation_is_seeded(options):
    """Samples that are drawn from the global generators are the same on every rank, which are left as they were."""
    before = torch.get_rng_state(), random.getstate()
    first, second = (take(lambda _: (torch.rand(20), random.random()), **options) for _ in range(2))  # noqa: S311
    assert first.why_none is None
    assert len(first.found) >= 8
    assert differing(first.found, second.found) == []
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


def test_what_differs_is_named():
    """The indices of the samples that differ are returned."""
    first, second = take(lambda index: index), take(lambda index: -index if index == 39 else index)
    assert differing(first.found, second.found) == [39]


def test_data_sets_that_cannot_be_compared():
    """Samples that no seed determines, and samples that cannot be read, are left out with the reason."""
    unseeded = np.random.default_rng()
    assert "from one read to the next" in take(lambda _: unseeded.random(9)).why_none
    assert "ZeroDivisionError" in take(lambda index: 1 // index).why_none
    assert take(lambda index: index, size=0).found == {}
    assert list(take(lambda index: index, size=1).found) == [0]
