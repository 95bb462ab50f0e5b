"""The steps between two votes: one where steps are long, several where steps are short.

A vote costs each rank some hundred microseconds, and makes the ranks wait for the slowest. A stop that is agreed on
within a quarter of a second is soon enough.
"""

from __future__ import annotations

import math

TARGET_SECONDS = 0.25  # seconds between two votes, estimated from the steps since the last one
MAX_STEPS = 16  # most steps between two votes: bounds the delay of a stop where steps suddenly become slower


class VoteInterval:
    """Counts a rank's step boundaries from vote to vote. Every call is made by all ranks or by none.

    The ranks agree on the interval in the votes themselves: rank 0 adds its proposal, the other ranks add 0.

    Args:
        max_seconds: the most seconds between two votes, where that is less than TARGET_SECONDS.

    Attributes:
        due: whether the next boundary without a started vote has a vote.
        steps: the interval that the last vote has agreed on; it takes effect if all ranks are ready at the next vote.
    """

    def __init__(self, max_seconds: float = math.inf) -> None:
        self._seconds = min(TARGET_SECONDS, max_seconds)
        self.due = True
        self.steps = 1
        self._boundaries_left = 0  # boundaries without a vote before the next vote
        self._steps_since_vote = 0
        self._last_vote = 0.0  # its time in seconds on the clock of `propose`

    def force_vote(self) -> None:
        """Require a vote at the next boundary whose vote has not started yet."""
        self.due = True

    def propose(self, now: float) -> int:
        """Note that a vote starts at `now` seconds, and return the interval in steps that this rank proposes.

        The proposal is at most twice the present interval, because a few steps may have been short by chance.
        """
        seconds, steps = now - self._last_vote, self._steps_since_vote
        self.due, self._steps_since_vote, self._last_vote = False, 0, now
        if not steps:
            return self.steps
        fitting = MAX_STEPS if seconds <= 0 else int(min(MAX_STEPS, self._seconds * steps / seconds))
        return max(1, min(fitting, 2 * self.steps))

    def finish_vote(self, proposal: int, *, ready: bool) -> None:
        """Note the outcome of a vote.

        Args:
            proposal: rank 0's proposal, in steps.
            ready: whether all ranks can make as many steps without a vote as the last vote has agreed on.
        """
        self._boundaries_left = (min(proposal, self.steps) if ready else 1) - 1
        self.steps = proposal
        self.due = self.due or not self._boundaries_left  # a vote may have been required since `propose`

    def count_step(self) -> None:
        """Count an optimizer step."""
        self._steps_since_vote += 1

    def skip_boundary(self) -> None:
        """Count a boundary that had no vote."""
        self._boundaries_left -= 1
        self.due = not self._boundaries_left
