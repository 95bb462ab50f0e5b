"""What an impossible order for a workload is refused with."""

from __future__ import annotations

from metasched.core.errors import MetaschedError


class GeneratorError(MetaschedError):
    """The workload cannot be made from what was given; the message says what is missing."""
