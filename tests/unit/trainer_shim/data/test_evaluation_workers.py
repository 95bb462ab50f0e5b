"""The loader workers of an evaluation."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from trainer_shim.data.data_wait import describe
from trainer_shim.data.evaluation_workers import prefetch_evaluation


class Squares(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        assert get_worker_info() is None or isinstance(get_worker_info().dataset, Squares)
        return index * index


class SquaresAtOnce(Squares):
    def __getitems__(self, indices):
        return [index * index for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([0, 1, 4, 9])


def everything(source):
    found = []
    while not source.exhausted:
        found += source.pop().tolist()
    return found


@pytest.mark.parametrize("dataset", [Squares(), SquaresAtOnce(), Stream()])
def test_the_workers_note_what_they_fetch(dataset):
    """The batches are those of the loader, and the loader is left as it was."""
    loader = DataLoader(dataset, batch_size=2, num_workers=1)
    source = prefetch_evaluation(loader, ())
    assert loader.dataset is dataset
    assert loader.worker_init_fn is None
    assert everything(source) == [0, 1, 4, 9]
    (state,) = source.progress.states()
    assert state.begun >= 2
    assert state.pid
    assert "epoch" not in describe([state._replace(fetching=1)])


def test_workers_that_live_on_note_in_the_same_memory():
    """The second evaluation finds its workers up."""
    loader = DataLoader(Squares(), num_workers=1, persistent_workers=True)
    first = prefetch_evaluation(loader, ())
    assert everything(first) == [0, 1, 4, 9]
    second = prefetch_evaluation(loader, ())
    assert second.progress is first.progress
    assert everything(second) == [0, 1, 4, 9]
    assert second.progress.states()[0].begun == 8


def test_other_iterables_are_fetched_in_the_main_thread():
    """They may use torch's generator."""
    source = prefetch_evaluation([torch.tensor([1])], ())
    assert source.progress is None
    assert everything(source) == [1]
