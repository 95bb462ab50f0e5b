"""The global batch in hand: its micro-batches, and the gradients that are summed over them."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from trainer_shim.errors import UsageError
from trainer_shim.session.usage_checks import check_gradients_kept

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from trainer_shim.data.sample_order import MicroBatch

log = logging.getLogger("trainer_shim")


class GradientAccumulation:
    """The state of the optimizer step that the script works on.

    Attributes:
        micro: the micro-batch in hand, None outside the loop over the training loader.
        modules: the tracked modules.
        synchronized: the parts of them that exchange gradients, each with a `no_sync()`.
    """

    def __init__(self) -> None:
        self.micro: MicroBatch | None = None
        self.modules: list[torch.nn.Module] = []
        self.synchronized: list[Any] = []
        self._stepped = False  # whether `step` was called for the global batch in hand
        self._weighted = False  # whether `backward` was called for it
        self._summed = False  # whether `backward` was called for earlier micro-batches of it
        self._warned = False

    def start_epoch(self) -> None:
        """Forget a global batch that the script has left unfinished."""
        self._weighted = self._summed = False

    def start_batch(self) -> None:
        """Begin the next global batch."""
        self._stepped = False

    @contextlib.contextmanager
    def working_on(self, micro: MicroBatch) -> Iterator[None]:
        """Hand a micro-batch to the script for a block; all but a global batch's last hold their gradients back."""
        self.micro = micro
        try:
            if micro.last:
                yield
            else:
                with contextlib.ExitStack() as stack:
                    for module in self.synchronized:
                        stack.enter_context(module.no_sync())
                    yield
        finally:  # also where the script leaves its loop in the block
            self.micro = None
            self._summed = self._weighted and not micro.last

    def current(self) -> MicroBatch:
        """Return the micro-batch in hand.

        Raises:
            UsageError: there is none.
        """
        if self.micro is None:
            raise UsageError("ctx.backward() and ctx.step() belong in `for ... in loader`")
        return self.micro

    def add_gradient(self, *, check: bool) -> None:
        """Note a call of `backward`.

        Args:
            check: whether the modules show the sums of earlier micro-batches.

        Raises:
            UsageError: the script has cleared the gradients to which this one is to be added.
        """
        if self._summed and check:
            check_gradients_kept(self.modules)
        self._weighted = True

    def mark_stepped(self, micro: MicroBatch) -> None:
        """Note the optimizer step of the global batch; warn, once, of micro-batches that are not weighted.

        Raises:
            UsageError: the global batch has had its step.
        """
        if self._stepped:
            raise UsageError(
                "ctx.step() is called once for a batch: give it all optimizers in one call, "
                "or step the others where ctx.boundary is true"
            )
        self._stepped = True
        if not (self._weighted or self._warned) and micro.weight != 1:
            self._warned = True
            log.warning("ctx.backward(loss) was not called: micro-batches are not weighted by their samples")

    def end_batch(self) -> None:
        """End the global batch, whose last micro-batch is done.

        Raises:
            UsageError: it has had no optimizer step.
        """
        if not self._stepped:
            raise UsageError(
                "the loop asks for its next batch before ctx.step(optimizer): call it for every batch, also "
                "where `continue` leaves one out, and take out accumulation and prefetching of the script's own"
            )
        self._weighted = False
