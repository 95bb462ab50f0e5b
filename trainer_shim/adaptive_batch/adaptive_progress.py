"""The position of a training whose batch adapts, as its checkpoints hold it."""

from __future__ import annotations

from typing import NamedTuple


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
    """

    progress: float
    epoch_end: float
    data_pass: int
    batch: int
    square_sum: float = 0.0
    variance_sum: float = 0.0
    weight: float = 0.0
