"""The position of a training whose batch adapts, as its checkpoints hold it."""

from __future__ import annotations

from typing import Any, NamedTuple

from trainer_shim.adaptive_batch.adapt import RuleState
from trainer_shim.adaptive_batch.noise_averages import NoiseAverages


class AdaptiveProgress(NamedTuple):
    """What the position of an adaptive training has beyond that of a training with a fixed batch.

    Epochs of such a training are statistical: one lasts until the steps at M0 of a pass over the data are made, so an
    epoch may take more than one pass, and end within a pass.

    Attributes:
        progress: steps at M0 since the beginning of the job.
        epoch_end: the progress at which the present epoch ends.
        data_pass: the present pass over the data, from 0, to which the cursor belongs.
        batch: the global batch of the last step in samples.
        square_sum, variance_sum, weight: the averages of the gradient noise (see `NoiseAverages`).
        rule_state: what the script's own rule for the batch needs, None without one.

    Where a rule of the script changes the batch, an epoch is one pass, `progress` counts samples, and `batch` is the
    global batch of the next step.
    """

    progress: float
    epoch_end: float
    data_pass: int
    batch: int
    square_sum: float = 0.0
    variance_sum: float = 0.0
    weight: float = 0.0
    rule_state: RuleState | None = None

    @property
    def averages(self) -> NoiseAverages:
        """The averages of the gradient noise."""
        return NoiseAverages(self.square_sum, self.variance_sum, self.weight)

    def to_json(self) -> dict[str, Any]:
        """Return the position as manifests hold it."""
        return {**self._asdict(), "rule_state": None if self.rule_state is None else self.rule_state._asdict()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> AdaptiveProgress:
        """Return the position that `to_json` has described, in this version or in one without rules of scripts.

        Raises:
            TypeError: a key is missing or unknown.
        """
        state = content.get("rule_state")
        return cls(**{**content, "rule_state": None if state is None else RuleState(**state)})
