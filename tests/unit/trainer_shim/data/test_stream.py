"""Streams: every sample is trained once at any world size, number of workers and starting position."""

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_shim.batch import plan_batch
from trainer_shim.data.loader_factory import make_loader
from trainer_shim.data.prefetch import Prefetcher
from trainer_shim.data.stream import check_same_stream, next_batch_samples
from trainer_shim.errors import UsageError


class Stream(torch.utils.data.IterableDataset):
    """The samples (epoch, index, random number) of an epoch, in a random order."""

    def __init__(self, size):
        self.size = size
        self.epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = list(range(self.size))
        random.shuffle(order)
        assert torch.utils.data.get_worker_info() is None
        for index in order:
            yield self.epoch, index, torch.rand(()).item()


class Skipping:
    """A stream without torch's base class, whose iterator can skip; `made` counts the samples that were computed."""

    def __init__(self, size, lie=0):
        self.size = size
        self.lie = lie
        self.made = 0

    def __iter__(self):
        return SkippingIterator(self)


class SkippingIterator:
    def __init__(self, stream):
        self.stream = stream
        self.position = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.position == self.stream.size:
            raise StopIteration
        self.stream.made += 1
        self.position += 1
        return self.position - 1

    def skip(self, count):
        passed = min(count, self.stream.size - self.position)
        self.position += passed
        return passed + self.stream.lie


def make(stream, global_batch, world=1, rank=0, limit=None, **options):
    plan = plan_batch(global_batch, world, limit)
    return make_loader(stream, iter, {"collate_fn": list} | options, seed=7, shuffle=None, plan=plan, rank=rank)


def read(loader, epoch=0, cursor=0):
    return list(loader.micro_batches(epoch, cursor, lambda _: None))


def by_step(pairs):
    """The micro-batches of each global batch."""
    steps, step = [], []
    for micro, batch in pairs:
        step.append((micro, batch))
        if micro.last:
            steps.append(step)
            step = []
    assert not step
    return steps


runs = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4), st.none() | st.integers(1, 4)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=60)
@given(runs, st.integers(0, 40), st.booleans())
def test_every_sample_once(runs, size, skipping):
    """Through any worlds and stops every sample is trained once; each step has weights of one, as many on all ranks."""
    cursor, seen = 0, []
    for world, count, limit in [*runs, (2, 1000, None)]:
        ranks = [
            by_step(read(make(Skipping(size) if skipping else RangeStream(size), 7, world, rank, limit), 0, cursor))
            for rank in range(world)
        ]
        assert len({tuple(map(len, steps)) for steps in ranks}) == 1
        for step in range(min(count, len(ranks[0]))):
            micros = [pair for steps in ranks for pair in steps[step]]
            total = sum(micro.samples for micro, _ in micros)
            assert {micro.global_samples for micro, _ in micros} == {total}
            assert sum(micro.weight / world for micro, _ in micros) == pytest.approx(1)
            assert all(batch for _, batch in micros)
            assert all(limit is None or len(batch) <= limit for _, batch in micros)
            seen += [sample for micro, batch in micros for sample in batch[: micro.samples]]
            cursor += total
    assert sorted(seen) == list(range(size))


class RangeStream(torch.utils.data.IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


@pytest.fixture(scope="module")
def alone():
    """The samples of epoch 1 that a world of one process reads."""
    return [row for _, batch in read(make(Stream(29), 6), epoch=1) for row in batch]


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 3, "persistent_workers": True}])
@pytest.mark.parametrize(("world", "cursor"), [(1, 6), (4, 12), (2, 0), (3, 24)])
def test_the_same_stream_for_all(alone, options, world, cursor):
    """The order and a sample's random numbers do not depend on workers, ranks or the position of the resume."""
    assert len(set(alone)) == 29
    found = []
    for rank in range(world):
        loader = make(Stream(29), 6, world, rank, limit=1, **options)
        if options.get("persistent_workers"):
            read(loader, epoch=0)
        found += [row for micro, batch in read(loader, epoch=1, cursor=cursor) for row in batch[: micro.samples]]
    assert Counter(found) == Counter(alone[cursor:])


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_order_within_a_rank(workers):
    """Several workers hand on a rank's micro-batches in the stream's order, the last one at the end of each batch."""
    pairs = read(make(RangeStream(50), 8, 2, 1, limit=3, num_workers=workers))
    expected = [start + offset for start in range(0, 48, 8) for offset in range(4, 8)]
    assert [sample for micro, batch in pairs for sample in batch[: micro.samples]] == expected
    assert [micro.last for micro, _ in pairs] == [False, True] * 6 + [True]
    assert (pairs[-1][0].weight, len(pairs[-1][1])) == (0.0, 1)  # no share of the last two samples


def test_skipping_reads_no_more_than_its_share():
    """Of a stream that can skip, a rank reads its own samples, and one padding sample where its share is empty."""
    stream = Skipping(70)
    assert len(read(make(stream, 10, 5, 3), cursor=20)) == 5
    assert stream.made == 5 * 2 + 1


@pytest.mark.parametrize("lie", [1, -100, 0.5])
def test_skip_must_tell(lie):
    """An iterator whose `skip` does not return the number of skipped samples is refused."""
    with pytest.raises(UsageError, match="must return how many"):
        read(make(Skipping(30, lie), 10), cursor=20)


def test_length():
    """A stream's steps are known where it tells its length."""
    assert make(RangeStream(9), 2).steps_per_epoch is None

    class Told(RangeStream):
        def __len__(self):
            return self.size

    assert make(Told(9), 2).steps_per_epoch == 5


def test_failure_in_a_stream():
    """An error of the stream is raised to the reader, and is not taken for the end of the epoch."""

    def broken():
        yield 1
        raise OSError("lost")

    prefetcher = Prefetcher(make(list_of(broken), 1)._source.read_from(0, 0), waits=False)
    assert next_batch_samples(prefetcher) == 1
    prefetcher.pop()
    with pytest.raises(OSError, match="lost"):
        next_batch_samples(prefetcher)


def list_of(generator):
    class Broken(torch.utils.data.IterableDataset):
        def __iter__(self):
            return generator()

    return Broken()


@given(st.lists(st.integers(0, 100), min_size=1, max_size=5))
def test_ranks_that_disagree(sizes):
    """Ranks that are about to train batches of different sizes all notice it."""
    sums = sum(sizes), sum(size * size for size in sizes)
    if len(set(sizes)) == 1:
        check_same_stream(*sums, len(sizes))
    else:
        with pytest.raises(UsageError, match="on every rank"):
            check_same_stream(*sums, len(sizes))
