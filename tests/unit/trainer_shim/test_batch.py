"""Which world sizes a global batch suits, in words and as a table."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainer_shim
from trainer_shim.batch import splits, trainable_sizes
from trainer_shim.errors import BatchError


@given(st.integers(1, 40), st.none() | st.integers(1, 9))
def test_splits_tell_the_truth(batch, limit):
    """A split is even exactly when all micro-batches of all ranks have one size; there is none where it says so."""
    for split in splits(batch, limit, range(12)):
        assert (split.plan is None) == (not 1 <= split.world_size <= batch)
        if split.plan is None:
            assert "cannot be split" in split.description
            assert not split.is_even
            continue
        pieces = [split.plan.micro_batches(rank, batch) for rank in range(split.world_size)]
        sizes = {len(piece) for each in pieces for piece in each}
        assert split.is_even == (len(sizes) == 1 and len({len(each) for each in pieces}) == 1)
        assert split.is_even == split.description.startswith("even")


@given(st.integers(1, 12), st.integers(1, 4), st.none() | st.integers(1, 9))
def test_micro_batches_are_multiples(units, multiple_of, limit):
    """All micro-batches of all ranks are multiples, within the limit, and hold each sample once."""
    batch = units * multiple_of
    limit = None if limit is None else limit + multiple_of - 1
    for size in range(1, units + 1):
        plan = trainer_shim.plan_batch(batch, size, limit, multiple_of)
        for samples in range(multiple_of, batch + 1, multiple_of):
            pieces = [piece for rank in range(size) for piece in plan.micro_batches(rank, samples)]
            assert all(len(piece) % multiple_of == 0 for piece in pieces)
            assert all(len(piece) <= (limit or batch) for piece in pieces)
            assert sorted(place for piece in pieces for place in piece) == list(range(samples))
            counts = {len(plan.micro_batches(rank, samples)) for rank in range(size)}
            assert max(counts) == plan.micro_batch_count(samples)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((10, 1, None, 4), "no multiple of multiple_of"),
        ((8, 5, None, 2), "2 for each of the 5 ranks"),
        ((8, 1, 3, 4), "less than multiple_of"),
    ],
)
def test_impossible_multiples(arguments, words):
    """The error names the arguments to change."""
    with pytest.raises(BatchError, match=words):
        trainer_shim.plan_batch(*arguments)


def test_trainable_sizes():
    """Every rank needs as many samples as a micro-batch must have; long lists are not named."""
    assert trainable_sizes(12, 4) == [1, 2, 3]
    assert trainable_sizes(64) == list(range(1, 65))
    assert trainable_sizes(65) == []


def test_words():
    """The description names the micro-batches of the ranks."""
    words = {split.world_size: split.description for split in trainer_shim.splits(10, 3, range(1, 12))}
    assert words[1] == "uneven: 2 x 3 + 2 x 2 on every rank"
    assert words[2] == "uneven: 3 + 2 on every rank"
    assert words[3] == "uneven: 2 x 2 on some ranks, 2 + 1 on others"
    assert words[5] == "even: 2 on every rank"
    assert words[11] == "cannot be split: 10 samples for 11 ranks"


def test_bad_limit():
    """A limit that allows no sample is an error."""
    with pytest.raises(BatchError, match="max_per_gpu"):
        trainer_shim.splits(8, 0)
    with pytest.raises(BatchError, match="4 ranks"):
        trainer_shim.plan_batch(3, 4)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("64", "--max-per-gpu", "16", "--sizes", "4-5"), 0, "    4       16             1  even: 16 on every rank\n"),
        (("4", "--sizes", "5"), 1, "    5        -             -  cannot be split"),
        (("4", "--max-per-gpu", "0"), 2, "max_per_gpu is 0"),
    ],
)
def test_table(arguments, code, words):
    """The command prints a row for each size, and fails where one is impossible; it needs no torch."""
    script = (
        "import runpy, sys; sys.modules['torch'] = None; runpy.run_module('trainer_shim.batch', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert words in done.stdout + done.stderr
