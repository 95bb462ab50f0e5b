"""The current global batch: its micro-batches, and the gradients that are summed over them."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from trainer_shim.errors import UsageError
from trainer_shim.session.usage_checks import check_gradients_kept

if TYPE_CHECKING:
    import torch

    from trainer_shim.data.sample_order import MicroBatch

log = logging.getLogger("trainer_shim")


class GradientAccumulation:
    """The state of the optimizer step that the script computes.

    Attributes:
        micro: the current micro-batch, None outside the loop over the training loader.
        modules: the tracked modules.
        synchronized: the parts of the modules that exchange gradients, each with a `no_sync()`.
    """

    def __init__(self) -> None:
        self.micro: MicroBatch | None = None
        self.modules: list[torch.nn.Module] = []
        self.synchronized: list[Any] = []
        self._no_sync = contextlib.ExitStack()  # the modules' `no_sync()` during a micro-batch that is not the last
        self._stepped = False  # whether `step` was called for the current global batch
        self._weighted = False  # whether `backward` was called for the current global batch
        self._summed = False  # whether `backward` was called for earlier micro-batches of it
        self._warned = False

    def start_epoch(self) -> None:
        """Begin an epoch: its first global batch has had no optimizer step."""
        self._stepped = False

    def start_loop(self) -> None:
        """Begin a loop over the training loader: forget a global batch that the script has left unfinished."""
        self._weighted = self._summed = False

    def start_micro_batch(self, micro: MicroBatch) -> None:
        """Make a micro-batch the current one; only the last one of a global batch exchanges gradients."""
        self.micro = micro
        if not micro.last:
            for module in self.synchronized:
                self._no_sync.enter_context(module.no_sync())

    def end_micro_batch(self, micro: MicroBatch) -> None:
        """End the current micro-batch; to be called also where the script leaves its loop in it."""
        self.micro = None
        if not micro.last:
            self._no_sync.close()
        self._summed = self._weighted and not micro.last

    def current(self) -> MicroBatch:
        """Return the current micro-batch.

        Raises:
            UsageError: the call comes from outside a loop over the training loader.
        """
        if self.micro is None:
            raise UsageError("ctx.backward() and ctx.step() belong in `for ... in loader`")
        return self.micro

    def add_gradient(self, *, check: bool) -> MicroBatch:
        """Note a call of `backward`, and return the current micro-batch.

        Args:
            check: whether the modules hold the gradient sums of earlier micro-batches (FSDP holds them elsewhere).

        Raises:
            UsageError: outside a loop over the training loader, or the script has cleared the gradient sums.
        """
        micro = self.current()
        if self._summed and check:
            check_gradients_kept(self.modules)
        self._weighted = True
        return micro

    def mark_stepped(self, micro: MicroBatch) -> None:
        """Note the optimizer step of the global batch; warn, once, where its micro-batches were not weighted.

        Raises:
            UsageError: the global batch has had its optimizer step.
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
        """End the global batch after its last micro-batch.

        Raises:
            UsageError: the global batch has had no optimizer step.
        """
        if not self._stepped:
            raise UsageError(
                "the loop asks for its next batch before ctx.step(optimizer): call it for every batch, also "
                "where `continue` leaves one out, and take out accumulation and prefetching of the script's own"
            )
        self._stepped = self._weighted = False
