"""Values of the script's own that a checkpoint holds: a best accuracy, a patience, a running mean."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Values(SimpleNamespace):
    """Named values that `track` saves and restores.

    `best = Values(loss=math.inf, patience=3)` has the attributes `best.loss` and `best.patience`; with
    `ctx.track(..., best=best)` they are those of the checkpoint after a resume. Rank 0's values are saved, and all
    ranks get them.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the values by name."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the values that the state has; a name that a newer script has added keeps its initial value."""
        vars(self).update(state)
