"""The batch plan: one global batch, whatever the world size.

The gradient of a step is that of the mean loss over the global batch. DDP averages gradients over the ranks, and each
micro-batch's loss is a mean of its own, so a micro-batch of n samples is weighted with n * world_size / global samples.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NamedTuple

from trainer_shim.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Iterable


class BatchPlan(NamedTuple):
    """How a global batch is split. Made by `plan_batch`, which checks it."""

    global_batch: int
    world_size: int
    max_per_gpu: int | None

    def rank_slice(self, rank: int, samples: int) -> range:
        """The positions within a global batch of `samples` samples that are `rank`'s; sizes differ by one at most."""
        least, more = divmod(samples, self.world_size)
        start = rank * least + min(rank, more)
        return range(start, start + least + (rank < more))

    def micro_batch_count(self, samples: int) -> int:
        """How many micro-batches each rank has of so many samples: the fewest that the largest share, rank 0's, needs.

        They are as many on every rank, because forward and backward passes may be collective.
        """
        largest = len(self.rank_slice(0, samples))
        return 1 if self.max_per_gpu is None else -(-largest // self.max_per_gpu)

    def micro_batches(self, rank: int, samples: int) -> list[range]:
        """Cut `rank`'s share of so many samples into micro-batches, whose sizes differ by one at most over all ranks.

        There are `count` of them, or one less where the share has no more samples.
        """
        share = self.rank_slice(rank, samples)
        cut = BatchPlan(len(share), min(self.micro_batch_count(samples), len(share)), None)
        pieces = (cut.rank_slice(number, len(share)) for number in range(cut.world_size))
        return [share[slice(piece.start, piece.stop)] for piece in pieces]

    def samples_in_full_batches(self, samples: int) -> int:
        """How many of so many samples whole global batches take."""
        return samples // self.global_batch * self.global_batch

    def weight(self, samples: int, global_samples: int) -> float:
        """The factor for the mean loss of a micro-batch of `samples` samples."""
        return samples * self.world_size / global_samples

    @property
    def per_gpu_batch(self) -> int:
        """The most samples that a GPU sees at once: the first rank's first ones."""
        return len(self.micro_batches(0, self.global_batch)[0])

    @property
    def accumulation(self) -> int:
        """The micro-batches that a GPU works through for one optimizer step."""
        return self.micro_batch_count(self.global_batch)


def plan_batch(global_batch: int, world_size: int, max_per_gpu: int | None = None) -> BatchPlan:
    """Plan a global batch.

    Raises:
        BatchError: it cannot be split.
    """
    if global_batch < world_size:
        raise BatchError(
            f"global_batch is {global_batch}, fewer samples than the {world_size} ranks: "
            "raise it, or run on fewer GPUs (max_gpus in the job's tag)"
        )
    if max_per_gpu is not None and max_per_gpu < 1:
        raise BatchError(f"max_per_gpu is {max_per_gpu}: it must be 1 or more")
    return BatchPlan(global_batch, world_size, max_per_gpu)


class Split(NamedTuple):
    """How a global batch falls on one world size; `plan` is None where it cannot be split.

    `even`: all micro-batches of all ranks have the same size, so that every GPU does the same work.
    """

    world_size: int
    plan: BatchPlan | None
    is_even: bool
    description: str


def splits(global_batch: int, max_per_gpu: int | None = None, sizes: Iterable[int] = range(1, 9)) -> list[Split]:
    """What becomes of a global batch at several world sizes, with a description.

    Raises:
        BatchError: `max_per_gpu` allows no sample.
    """
    found = []
    for size in sizes:
        if not 1 <= size <= global_batch:
            few = f"cannot be split: {global_batch} samples for {size} ranks"
            found.append(Split(size, None, is_even=False, description=few))
            continue
        plan = plan_batch(global_batch, size, max_per_gpu)
        # The first rank has one of the largest shares, the last one one of the smallest.
        ends = (plan.micro_batches(rank, global_batch) for rank in (0, size - 1))
        kinds = list(dict.fromkeys(map(_describe, ends)))
        even = len(kinds) == 1 and "+" not in kinds[0]
        where = f"{kinds[0]} on every rank" if len(kinds) == 1 else f"{kinds[0]} on some ranks, {kinds[1]} on others"
        description = f"{'even' if even else 'uneven'}: {where}"
        found.append(Split(size, plan, even, description))
    return found


def _describe(pieces: list[range]) -> str:
    """The sizes of micro-batches, the larger ones first: "2 x 4 + 3"."""
    lengths = [len(piece) for piece in pieces]
    counts = {length: lengths.count(length) for length in lengths}
    return " + ".join(f"{count} x {length}" if count > 1 else str(length) for length, count in counts.items())


def _sizes(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    """Print a table of splits; the exit code is 1 where some size is impossible."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer_shim.batch",
        description="Show how a global batch is split over world sizes.",
    )
    parser.add_argument("global_batch", type=int)
    parser.add_argument("--max-per-gpu", type=int)
    parser.add_argument("--sizes", type=_sizes, default=range(1, 9), help="world sizes, such as 1-8 (default) or 6")
    args = parser.parse_args()
    try:
        rows = splits(args.global_batch, args.max_per_gpu, args.sizes)
    except BatchError as error:
        parser.error(str(error))
    sys.stdout.write("ranks  per GPU  accumulation  samples\n")
    for row in rows:
        per_gpu, accumulation = (row.plan.per_gpu_batch, row.plan.accumulation) if row.plan else ("-", "-")
        sys.stdout.write(f"{row.world_size:5}  {per_gpu:>7}  {accumulation:>12}  {row.description}\n")
    return 1 if any(row.plan is None for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
