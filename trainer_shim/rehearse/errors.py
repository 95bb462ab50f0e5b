"""The error of a rehearsal."""

from __future__ import annotations

from trainer_shim.errors import ShimError


class RehearsalError(ShimError):
    """The script cannot be rehearsed: it failed, hung, or does not use the shim as required; the message says how."""
