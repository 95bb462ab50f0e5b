"""The batch plan: how one global batch is split at every world size.

The gradient of a step is that of the mean loss over the global batch. DDP averages gradients over the ranks, and the
loss of a micro-batch is a mean, so a micro-batch of n samples has the weight n * world_size / global samples.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NamedTuple

from trainer_shim.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Iterable


MAX_SIZES = 64  # the most world sizes that a `declare` line names


class BatchPlan(NamedTuple):
    """The split of a global batch over ranks and micro-batches. Made by `plan_batch`, which checks it.

    Attributes:
        global_batch: the samples of an optimizer step, over all ranks.
        world_size: the number of ranks.
        max_per_gpu: the most samples that fit on a GPU at once, None for no limit.
        multiple_of: every micro-batch has a multiple of so many samples.
    """

    global_batch: int
    world_size: int
    max_per_gpu: int | None
    multiple_of: int = 1

    def rank_slice(self, rank: int, samples: int) -> range:
        """Return `rank`'s positions within a global batch of `samples` samples.

        Sizes differ by `multiple_of` at most, which divides `samples`.
        """
        unit = self.multiple_of
        least, more = divmod(samples // unit, self.world_size)
        start = rank * least + min(rank, more)
        return range(start * unit, (start + least + (rank < more)) * unit)

    def micro_batch_count(self, samples: int) -> int:
        """Return the number of micro-batches of each rank: the fewest that fit the largest share of `samples` samples.

        The number is the same on every rank, because forward and backward passes may be collective.
        """
        largest = len(self.rank_slice(0, samples))
        if self.max_per_gpu is None:
            return 1
        return -(-largest // (self.max_per_gpu // self.multiple_of * self.multiple_of))

    def micro_batches(self, rank: int, samples: int) -> list[range]:
        """Cut `rank`'s share of `samples` samples into micro-batches.

        Their sizes differ by `multiple_of` at most over all ranks.

        Returns the positions of each micro-batch. There is one micro-batch less than `micro_batch_count` where the
        share has no more samples.
        """
        share = self.rank_slice(rank, samples)
        count = min(self.micro_batch_count(samples), len(share) // self.multiple_of)
        cut = BatchPlan(len(share), count, None, self.multiple_of)
        pieces = (cut.rank_slice(number, len(share)) for number in range(cut.world_size))
        return [share[slice(piece.start, piece.stop)] for piece in pieces]

    def samples_in_full_batches(self, samples: int) -> int:
        """Return how many of `samples` samples belong to full global batches."""
        return samples // self.global_batch * self.global_batch

    def weight(self, samples: int, global_samples: int) -> float:
        """Return the factor on the mean loss of a micro-batch of `samples` samples."""
        return samples * self.world_size / global_samples

    @property
    def per_gpu_batch(self) -> int:
        """The most samples that a GPU processes at once: the first micro-batch of rank 0."""
        return len(self.micro_batches(0, self.global_batch)[0])

    @property
    def accumulation(self) -> int:
        """The micro-batches that a GPU processes for one optimizer step."""
        return self.micro_batch_count(self.global_batch)


def plan_batch(global_batch: int, world_size: int, max_per_gpu: int | None = None, multiple_of: int = 1) -> BatchPlan:
    """Return the split of a global batch, into micro-batches of multiples of `multiple_of` samples.

    Raises:
        BatchError: the global batch cannot be split over this number of ranks.
    """
    if multiple_of < 1 or global_batch % multiple_of:
        raise BatchError(
            f"global_batch is {global_batch}, no multiple of multiple_of, {multiple_of}: change one of them"
        )
    if multiple_of > 1 and global_batch // multiple_of < world_size:
        raise BatchError(
            f"global_batch is {global_batch}, fewer samples than {multiple_of} for each of the {world_size} ranks: "
            "raise it, or run on fewer GPUs (max_gpus in the job's tag)"
        )
    if global_batch < world_size:
        raise BatchError(
            f"global_batch is {global_batch}, fewer samples than the {world_size} ranks: "
            "raise it, or run on fewer GPUs (max_gpus in the job's tag)"
        )
    if max_per_gpu is not None and max_per_gpu < 1:
        raise BatchError(f"max_per_gpu is {max_per_gpu}: it must be 1 or more")
    if max_per_gpu is not None and max_per_gpu < multiple_of:
        raise BatchError(f"max_per_gpu is {max_per_gpu}, less than multiple_of, {multiple_of}: change one of them")
    return BatchPlan(global_batch, world_size, max_per_gpu, multiple_of)


def trainable_sizes(global_batch: int, multiple_of: int = 1) -> list[int]:
    """Return the world sizes at which each rank has samples, ascending; empty where they are more than MAX_SIZES."""
    most = global_batch // multiple_of
    return list(range(1, most + 1)) if most <= MAX_SIZES else []


class Split(NamedTuple):
    """The split of a global batch at one world size.

    Attributes:
        world_size: the number of ranks.
        plan: the split, None where the global batch cannot be split.
        is_even: whether all micro-batches of all ranks have the same size, so that every GPU does the same work.
        description: the split in words.
    """

    world_size: int
    plan: BatchPlan | None
    is_even: bool
    description: str


def splits(
    global_batch: int, max_per_gpu: int | None = None, sizes: Iterable[int] = range(1, 9), multiple_of: int = 1
) -> list[Split]:
    """Return the splits of a global batch at several world sizes.

    Raises:
        BatchError: `max_per_gpu` is below 1 or `multiple_of`, or `multiple_of` does not divide `global_batch`.
    """
    found = []
    for size in sizes:
        if not 1 <= size <= global_batch // multiple_of:
            few = f"cannot be split: {global_batch} samples for {size} ranks"
            found.append(Split(size, None, is_even=False, description=few))
            continue
        plan = plan_batch(global_batch, size, max_per_gpu, multiple_of)
        # Rank 0 has one of the largest shares, the last rank one of the smallest.
        ends = (plan.micro_batches(rank, global_batch) for rank in (0, size - 1))
        kinds = list(dict.fromkeys(map(_describe, ends)))
        even = len(kinds) == 1 and "+" not in kinds[0]
        where = f"{kinds[0]} on every rank" if len(kinds) == 1 else f"{kinds[0]} on some ranks, {kinds[1]} on others"
        description = f"{'even' if even else 'uneven'}: {where}"
        found.append(Split(size, plan, even, description))
    return found


def _describe(pieces: list[range]) -> str:
    """Return the sizes of micro-batches in words, the larger ones first: "2 x 4 + 3"."""
    lengths = [len(piece) for piece in pieces]
    counts = {length: lengths.count(length) for length in lengths}
    return " + ".join(f"{count} x {length}" if count > 1 else str(length) for length, count in counts.items())


def _sizes(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    """Print a table of splits, and return the exit code: 1 where a world size is impossible, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer_shim.batch",
        description="Show how a global batch is split over world sizes.",
    )
    parser.add_argument("global_batch", type=int)
    parser.add_argument("--max-per-gpu", type=int)
    parser.add_argument(
        "--multiple-of", type=int, default=1, help="every micro-batch has a multiple of so many samples"
    )
    parser.add_argument("--sizes", type=_sizes, default=range(1, 9), help="world sizes, such as 1-8 (default) or 6")
    args = parser.parse_args()
    try:
        rows = splits(args.global_batch, args.max_per_gpu, args.sizes, args.multiple_of)
    except BatchError as error:
        parser.error(str(error))
    sys.stdout.write("ranks  per GPU  accumulation  samples\n")
    for row in rows:
        per_gpu, accumulation = (row.plan.per_gpu_batch, row.plan.accumulation) if row.plan else ("-", "-")
        sys.stdout.write(f"{row.world_size:5}  {per_gpu:>7}  {accumulation:>12}  {row.description}\n")
    return 1 if any(row.plan is None for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
