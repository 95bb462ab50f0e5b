"""The order of the samples: one global cursor over each epoch's order, at every world size.

The order of an epoch is a permutation fixed by (seed, epoch), or that of a stream (see `stream`). A step takes the next
`global_batch` samples of the order, and splits them over the ranks. So a position in an epoch is one number, with the
same meaning at every world size and every global batch. No order is held in memory: its parts are computed on request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from trainer_shim.data.permutation import Permutation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from trainer_shim.batch import BatchPlan
    from trainer_shim.data.plan_switch import PlanSwitch


ORDER_VERSION = 2  # version 1 was torch.randperm, held in memory
_BLOCK = 8192  # positions that are computed at once, where fewer are asked for


class SampleOrder(NamedTuple):
    """The parameters of a data set's order; a checkpoint is continued only with the same parameters.

    Attributes:
        seed: the seed of the permutations.
        size: the number of samples.
        shuffle: whether each epoch has a permutation of its own.
        version: the version of the permutations.
    """

    seed: int
    size: int
    shuffle: bool
    version: int = ORDER_VERSION

    def epoch_order(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch, in constant memory."""
        shuffled = self.shuffle and self.size > 0
        return EpochOrder(self.size, Permutation(self.size, self.seed, epoch, "order") if shuffled else None)

    def epoch_indices(self, epoch: int) -> torch.Tensor:
        """Return the data set's indices in the order of an epoch, int64 of shape (size,), for small data sets."""
        return self.epoch_order(epoch)[:]


class EpochOrder:
    """The order of the samples in one epoch: slices of it are tensors of indices, int64 on the CPU.

    Args:
        size: the number of samples.
        permutation: the permutation, None for the order of the data set.
    """

    def __init__(self, size: int, permutation: Permutation | None) -> None:
        self._size = size
        self._permutation = permutation
        self._blocks: dict[int, torch.Tensor] = {}  # the last two computed blocks, by number

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, positions: slice) -> torch.Tensor:
        start, stop, _ = positions.indices(self._size)
        if self._permutation is None or stop - start >= _BLOCK:
            return self._compute(start, stop)
        numbers = range(start // _BLOCK, -(-stop // _BLOCK))
        parts = [self._block(number)[max(start - number * _BLOCK, 0) : stop - number * _BLOCK] for number in numbers]
        return parts[0] if len(parts) == 1 else torch.cat(parts) if parts else self._compute(start, start)

    def _block(self, number: int) -> torch.Tensor:
        found = self._blocks.get(number)
        if found is None:
            found = self._compute(number * _BLOCK, min((number + 1) * _BLOCK, self._size))
            if len(self._blocks) > 1:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = found
        return found

    def _compute(self, start: int, stop: int) -> torch.Tensor:
        positions = torch.arange(start, max(start, stop), device="cpu")  # a script may have set another default device
        return positions if self._permutation is None else self._permutation.at(positions)


def order_difference(saved: dict[str, Any], present: dict[str, Any]) -> str | None:
    """Return why a checkpoint's position has no meaning in the present order; None where the orders are the same.

    Args:
        saved: the parameters of the order that the checkpoint's manifest has.
        present: the parameters of the order that this script has.
    """
    before = {"version": 1, **saved} if "size" in saved else saved
    after = present
    if not before.get("shuffle", True):  # the order of the data set has no versions
        before, after = ({**order, "version": None} for order in (before, after))
    if before == after:
        return None
    if {**before, "version": None} == {**after, "version": None}:
        return (
            f"made with version {before['version']} of the shuffled order, and this trainer_shim has version "
            f"{after['version']}: finish this training with the trainer_shim that has begun it, or begin anew in "
            "another checkpoint directory"
        )
    return f"made with {saved}, and this script has {present}; use another checkpoint directory for other data"


class StreamOrder(NamedTuple):
    """The parameters of a stream's order: the stream determines the order, and its end the length."""

    seed: int
    stream: bool = True


class MicroBatch(NamedTuple):
    """The samples of one forward and backward pass of one rank.

    Attributes:
        position: the position of the first sample in the epoch's order.
        indices: the samples' indices in a map-style data set, empty for a stream.
        samples: the number of samples, 0 for a filler: a rank with fewer samples than the other ranks have
            micro-batches takes part in their collectives with a filler of weight 0.
        weight: the factor on the mean loss.
        last: whether this is the rank's last micro-batch of its global batch.
        global_samples: the number of samples in the global batch.
        plan: the split of the global batch.
    """

    position: int
    indices: list[int]
    samples: int
    weight: float
    last: bool
    global_samples: int
    plan: BatchPlan


def micro_batches(
    order: torch.Tensor | EpochOrder, cursor: int, plans: PlanSwitch, rank: int, *, drop_last: bool = False
) -> Iterator[MicroBatch]:
    """Yield a rank's micro-batches from `cursor` to the end of the order.

    Every rank has the same number of micro-batches of a global batch.

    Args:
        order: the indices of an epoch in their order, int64 of shape (size,), or computed on request.
        cursor: the position in the order.
        plans: the batch plan of each position.
        rank: the rank.
        drop_last: whether a last global batch that is not full is left out.
    """
    before: tuple[BatchPlan, int] | None = None  # plan and size of the last global batch; the next one usually has them
    count, pieces = 0, list[range]()
    start = cursor
    while start < len(order):
        plan = plans.plan_at(start, len(order))
        size = min(plan.global_batch, len(order) - start)
        if drop_last and size < plan.global_batch:
            return
        if (plan, size) != before:
            before, count, pieces = (plan, size), plan.micro_batch_count(size), plan.micro_batches(rank, size)
        for number, piece in enumerate(pieces, start=1):
            indices = order[start + piece.start : start + piece.stop].tolist()
            weight, last = plan.weight(len(piece), size), number == count
            yield MicroBatch(
                start + piece.start, indices, len(indices), weight, last=last, global_samples=size, plan=plan
            )
        if len(pieces) < count:
            filler = order[start : start + plan.multiple_of].tolist()
            yield MicroBatch(start, filler, 0, 0.0, last=True, global_samples=size, plan=plan)
        start += size
