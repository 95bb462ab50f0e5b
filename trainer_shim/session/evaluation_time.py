"""How long evaluations take: a long one is worth a checkpoint before it, so that a stop need not wait for its end."""

from __future__ import annotations

LONG_EVALUATION = 5.0  # seconds


class EvaluationTime:
    """The seconds of evaluation between two boundaries, and between the last two epochs."""

    def __init__(self) -> None:
        self._seconds = 0.0  # since the last boundary
        self._between_epochs: float | None = None

    def add(self, seconds: float) -> None:
        """Add the duration of one evaluation, seconds."""
        self._seconds += seconds

    def pass_boundary(self) -> None:
        """Begin to count anew, behind a step."""
        self._seconds = 0.0

    def end_epoch(self) -> None:
        """Begin to count anew, behind an epoch and its evaluation."""
        self._between_epochs, self._seconds = self._seconds, 0.0

    @property
    def long_between_epochs(self) -> bool:
        """Whether an evaluation between epochs is worth a checkpoint: as the last one was long, or there was none."""
        return self._between_epochs is None or self._between_epochs >= LONG_EVALUATION
