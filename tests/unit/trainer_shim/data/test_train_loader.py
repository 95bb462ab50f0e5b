"""The batch plan, and the order in which samples are trained."""

import gc
import random
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer_shim.batch import plan_batch
from trainer_shim.data.loader_factory import make_loader
from trainer_shim.data.loader_workers import workers_ignoring_signals
from trainer_shim.data.plan_switch import PlanSwitch
from trainer_shim.data.sample_order import SampleOrder, micro_batches
from trainer_shim.errors import BatchError, UsageError

worlds = st.integers(1, 9)
limits = st.none() | st.integers(1, 7)


@given(worlds, st.integers(0, 40), limits)
def test_shares(world, samples, limit):
    """Shares tile the batch; all are cut into as many pieces within the limit; both differ in size by one at most."""
    plan = plan_batch(40, world, limit)
    shares = [plan.rank_slice(rank, samples) for rank in range(world)]
    assert [position for share in shares for position in share] == list(range(samples))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    cuts = [plan.micro_batches(rank, samples) for rank in range(world)]
    assert [[position for piece in cut for position in piece] for cut in cuts] == [list(share) for share in shares]
    for share, cut in zip(shares, cuts, strict=True):
        assert len(cut) == min(plan.micro_batch_count(samples), len(share))
    lengths = {len(piece) for cut in cuts for piece in cut}
    assert max(lengths, default=1) - min(lengths, default=1) <= 1 <= min(lengths, default=1)
    assert limit is None or max(lengths, default=1) <= limit


@given(worlds, st.integers(9, 30), limits, st.integers(1, 100))
def test_as_many_micro_batches_on_every_rank(world, batch, limit, samples):
    """All ranks go through as many micro-batches of each global batch, no more than the largest share needs."""
    plan = plan_batch(batch, world, limit)
    found = [list(micro_batches(torch.arange(samples), 0, PlanSwitch(plan), rank)) for rank in range(world)]
    assert len({tuple((micro.last, micro.global_samples) for micro in micros) for micros in found}) == 1
    assert all(micro.samples for micro in found[0])
    assert all(len(micro.indices) == max(micro.samples, 1) for micros in found for micro in micros)


@given(worlds, st.integers(9, 30), limits, st.integers(1, 100))
def test_weights(world, batch, limit, samples):
    """Averaged over the ranks, the weighted micro-batch means are the mean of each global batch."""
    plan = plan_batch(batch, world, limit)
    order, values = torch.arange(samples), torch.arange(samples, dtype=torch.float64).square()
    steps = -(-samples // batch)
    sums = [0.0] * steps
    for rank in range(world):
        step = 0
        for micro in micro_batches(order, 0, PlanSwitch(plan), rank):
            sums[step] += values[micro.indices].mean().item() * micro.weight / world
            step += micro.last
        assert step == steps
    assert sums == pytest.approx([chunk.mean().item() for chunk in values.split(batch)])


@given(st.lists(st.tuples(worlds, st.integers(0, 6), limits), min_size=1, max_size=5), st.integers(1, 80))
def test_every_sample_once(runs, samples):
    """Through any sequence of world sizes and stops, every sample of an epoch is trained exactly once."""
    order = SampleOrder(3, samples, shuffle=True).epoch_indices(2)
    cursor, seen = 0, []
    for world, steps, limit in [*runs, (2, 1000, None)]:
        plan = plan_batch(9, world, limit)
        taken = 0
        for rank in range(world):
            done = advanced = 0
            for micro in micro_batches(order, cursor, PlanSwitch(plan), rank):
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
    order = SampleOrder(1, 100, shuffle=True)
    assert order.epoch_indices(0).tolist() == SampleOrder(1, 100, shuffle=True).epoch_indices(0).tolist()
    assert (
        order.epoch_indices(0).tolist()
        != order.epoch_indices(1).tolist()
        != SampleOrder(2, 100, shuffle=True).epoch_indices(1).tolist()
    )
    assert SampleOrder(1, 4, shuffle=False).epoch_indices(7).tolist() == [0, 1, 2, 3]


def test_plan_in_numbers():
    """A plan says what a GPU sees at most, and how often it accumulates."""
    plan = plan_batch(10, 3, 2)
    assert (plan.per_gpu_batch, plan.accumulation) == (2, 2)
    assert [len(plan.rank_slice(rank, 10)) for rank in range(3)] == [4, 3, 3]
    halved = plan_batch(10, 3, 3)  # four in two halves, and so the three of the others
    assert (halved.per_gpu_batch, halved.accumulation) == (2, 2)
    assert [len(piece) for piece in halved.micro_batches(2, 10)] == [2, 1]


@pytest.mark.parametrize(("batch", "world", "limit", "word"), [(3, 4, None, "4 ranks"), (8, 4, 0, "max_per_gpu")])
def test_bad_plan(batch, world, limit, word):
    """A batch that cannot be split is an error that says why."""
    with pytest.raises(BatchError, match=word):
        plan_batch(batch, world, limit)


def make(dataset, global_batch, world=1, rank=0, *, limit=None, shuffle=None, **options):
    """A rank's training loader."""
    plan = plan_batch(global_batch, world, limit)
    return make_loader(dataset, iter, options, seed=5, shuffle=shuffle, plan=plan, rank=rank)


def read(loader, epoch=0, cursor=0):
    return list(loader.micro_batches(epoch, cursor, lambda _: None))


def test_steps_per_epoch():
    """A schedule counts the same steps at every world size, the partial one included."""
    assert [make(range(21), 10, world).steps_per_epoch for world in (1, 4)] == [3, 3]
    with pytest.raises(TypeError, match="steps_per_epoch"):
        len(make(range(21), 10))


def test_the_data_set_of_a_loader():
    """A loader has the script's own data set, as a DataLoader has."""
    for dataset in (Augmented(), AsStream()):
        assert make(dataset, 6).dataset is dataset


@pytest.mark.parametrize("stream", [False, True])
def test_drop_last(stream):
    """Whole global batches only, the same at every world size; a training may do so at one start and not at another."""
    dataset = AsStream() if stream else Augmented()
    for world in (1, 3):
        loaders = [make(dataset, 6, world, rank, limit=2, collate_fn=list, drop_last=True) for rank in range(world)]
        assert stream or {(loader.steps_per_epoch, loader.samples_per_epoch) for loader in loaders} == {(3, 18)}
        whole, rest = ([pair for loader in loaders for pair in read(loader, cursor=cursor)] for cursor in (0, 10))
        assert [sum(micro.samples for micro, _ in part) for part in (whole, rest)] == [18, 12]
        assert {micro.global_samples for micro, _ in whole + rest} == {6}
        order = list(range(23)) if stream else SampleOrder(5, 23, shuffle=True).epoch_indices(0).tolist()
        assert {row[0] for _, batch in whole for row in batch} == set(order[:18])
        assert {row[0] for _, batch in rest for row in batch} == set(order[10:22])
    if not stream:
        with pytest.raises(BatchError, match="leaves nothing of 23 samples"):
            make(dataset, 24, drop_last=True)


def draw():
    return torch.rand(()).item(), random.random(), np.random.rand()  # noqa: NPY002, S311  what scripts use


class Augmented(torch.utils.data.Dataset):
    """Samples with what a script may draw for them."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return index, *draw()


class AsStream(torch.utils.data.IterableDataset):
    """The same, one after the other."""

    def __iter__(self):
        return (Augmented()[index] for index in range(23))


@pytest.fixture(scope="module")
def augmented():
    """{index: draws} of epoch 1, by one process."""
    return {row[0]: tuple(row) for _, batch in read(make(Augmented(), 6, collate_fn=list), epoch=1) for row in batch}


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 3, "persistent_workers": True}, {}])
@pytest.mark.parametrize(("world", "cursor"), [(1, 6), (4, 12), (3, 0)])
def test_augmentation_is_the_samples_own(augmented, options, world, cursor):
    """What is drawn for a sample does not depend on loader workers, ranks, or where the epoch was taken up."""
    found = []
    for rank in range(world):
        loader = make(Augmented(), 6, world, rank, limit=2, collate_fn=list, **options)
        if options.get("persistent_workers"):
            read(loader, epoch=0)
        for micro, batch in read(loader, epoch=1, cursor=cursor):
            found += [tuple(row) for row in batch[: micro.samples]]
    order = SampleOrder(5, 23, shuffle=True).epoch_indices(1).tolist()[cursor:]
    assert sorted(found) == sorted(augmented[index] for index in order)


def test_augmentation_differs_by_epoch(augmented):
    """Another epoch draws other numbers for the same sample."""
    other = [row for _, batch in read(make(Augmented(), 6, collate_fn=list), epoch=2) for row in batch]
    assert len(other) == 23
    assert all(row[1:] != augmented[row[0]][1:] for row in other)


class InBatches(Augmented):
    """A data set that fetches many samples at once."""

    def __getitems__(self, indices):
        return [(index, "together") for index in indices]


def test_a_data_set_that_fetches_batches():
    """A data set's own way to fetch several samples is used."""
    assert [len(batch) for _, batch in read(make(InBatches(), 6, collate_fn=list))] == [6, 6, 6, 5]
    assert {row[1] for _, batch in read(make(InBatches(), 6, collate_fn=list)) for row in batch} == {"together"}


@pytest.mark.parametrize("stream", [False, True])
def test_no_number_is_drawn_twice(stream):
    """A micro-batch's random numbers differ from every sample's."""
    dataset = AsStream() if stream else Augmented()
    samples, micro_batches = [], []
    for _, batch in make(dataset, 1, shuffle=False, collate_fn=list).micro_batches(0, 0, lambda _: None):
        samples += [row[1:] for row in batch]
        micro_batches.append(draw())
    assert len({*samples, *micro_batches}) == 2 * 23


class Batch(list):
    """A batch that a weak reference can refer to."""


@pytest.mark.parametrize("stream", [False, True])
def test_the_last_batch_of_an_epoch_is_released(stream):
    """The loader releases the last batch at the end of the epoch, without a garbage collection."""
    loader = make(AsStream() if stream else Augmented(), 4, shuffle=False, collate_fn=Batch)
    enabled = gc.isenabled()
    gc.disable()
    try:
        for _, batch in loader.micro_batches(0, 0, lambda _: None):
            last = weakref.ref(batch)
        del batch
        assert last() is None
    finally:
        if enabled:
            gc.enable()


@pytest.mark.parametrize("workers", [0, 2])
def test_randomness_follows_the_position(workers):
    """A micro-batch's random numbers do not depend on the position of the resume, or on the loader's workers."""

    def draws(cursor, **options):
        loader = make(Augmented(), 4, **options)
        found = []
        for micro, _ in loader.micro_batches(0, cursor, lambda _: None):
            found.append((micro.position, *draw()))
        return found

    whole = draws(0)
    assert draws(8, num_workers=workers) == whole[2:]
    assert len({row[1:] for row in whole}) == 6


def test_the_workers_see_the_script_s_data_set():
    """A worker_init_fn receives the data set of the script, not the shim's wrapper."""
    seen = workers_ignoring_signals((), note_dataset)
    batches = read(make(Augmented(), 23, num_workers=1, worker_init_fn=seen, collate_fn=what_was_noted))
    assert [batch for _, batch in batches] == ["Augmented"]


def note_dataset(worker):
    note_dataset.found = type(torch.utils.data.get_worker_info().dataset).__name__


def what_was_noted(_):
    return note_dataset.found


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [
        (range(9), {"batch_size": 3}, "batch_size"),
        (range(9), {"in_order": False}, "in_order"),
        (3, {}, "a int, which has no __getitem__"),
        (iter([1]), {"shuffle": True}, "its own order"),
    ],
)
def test_bad_options(dataset, options, words):
    """What would change the batches behind the shim's back is refused."""
    with pytest.raises(UsageError, match=words):
        make(dataset, 3, **options)


def test_leaving_an_epoch_early():
    """A loop left early, with workers that stay, is followed by the next epoch in full."""
    loader = make(Augmented(), 4, num_workers=2, persistent_workers=True, collate_fn=list)
    pairs = loader.micro_batches(0, 0, lambda _: None)
    next(pairs)
    pairs.close()
    rows = [row[0] for _, batch in read(loader, epoch=1) for row in batch]
    assert rows == SampleOrder(5, 23, shuffle=True).epoch_indices(1).tolist()


DEAF = """
import os, signal, subprocess, threading, time
from trainer_shim.data.loader_workers import workers_ignoring_signals
start = workers_ignoring_signals((signal.SIGTERM,), None)

def code(by_trainer, threads):
    ready, said = os.pipe()
    worker = os.fork()
    if worker == 0:
        if threads:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        start(0)
        os.write(said, b".")
        time.sleep(60 if by_trainer else 0.3)
        os._exit(7)
    os.read(ready, 1)
    if by_trainer:
        os.kill(worker, signal.SIGTERM)
    else:
        subprocess.run(["kill", "-TERM", str(worker)], timeout=30, check=True)
    return os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])

print(code(True, False), code(False, False), code(False, True))
"""


def test_a_worker_heeds_its_trainer_alone():
    """A SIGTERM of the trainer's ends a worker; anybody else's does not, also where other threads could take it."""
    done = subprocess.run([sys.executable, "-c", DEAF], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["0", "7", "7"]
