"""The duration of evaluations: a checkpoint before a long evaluation lets a stop come before its end."""

from __future__ import annotations

LONG_EVALUATION = 5.0  # seconds from which an evaluation has a checkpoint before it


class EvaluationTime:
    """The seconds of evaluation between two boundaries, and between the last two epochs."""

    def __init__(self) -> None:
        self._seconds = 0.0  # since the last boundary
        self._between_epochs: float | None = None

    def add(self, seconds: float) -> None:
        """Add the duration of one evaluation, seconds."""
        self._seconds += seconds

    def pass_boundary(self) -> None:
        """Reset the seconds after a step."""
        self._seconds = 0.0

    def end_epoch(self) -> None:
        """Note the seconds between two epochs, and reset them."""
        self._between_epochs, self._seconds = self._seconds, 0.0

    @property
    def long_between_epochs(self) -> bool:
        """Whether a checkpoint before the next evaluation is due: the last one was long, or there was none yet."""
        return self._between_epochs is None or self._between_epochs >= LONG_EVALUATION
