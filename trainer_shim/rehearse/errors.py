"""The error of a rehearsal."""

from __future__ import annotations

from trainer_shim.errors import ShimError


class RehearsalError(ShimError):
    """The script could not be rehearsed: it failed, hung, or did not do what the shim asks of it; says how."""
