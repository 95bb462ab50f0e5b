"""The error of the workload generators."""

from __future__ import annotations

from metasched.core.errors import MetaschedError


class GeneratorError(MetaschedError):
    """The workload cannot be generated from these parameters and data; the message says what is missing."""
