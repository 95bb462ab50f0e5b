"""How often the ranks vote: at every step boundary where steps are long, at every k-th where they are short.

A vote costs some hundred microseconds of each rank's time, and takes them out of their stride. A stop that is agreed on
within a quarter of a second is soon enough.
"""

from __future__ import annotations

import math

TARGET_SECONDS = 0.25  # seconds between two votes, as far as the steps so far tell
MAX_STEPS = 16  # steps between two votes: bounds what it costs where steps become slower of a sudden


class VoteInterval:
    """Counts a rank's step boundaries from vote to vote. All ranks count alike: each call is made by all or none.

    The interval is agreed on with the votes themselves: rank 0 adds its proposal to them, the others nothing.
    `max_seconds` is the most seconds between two votes, where less than usual is wanted.
    """

    def __init__(self, max_seconds: float = math.inf) -> None:
        self._seconds = min(TARGET_SECONDS, max_seconds)
        self.steps = 1  # steps, as agreed on by the last vote; for it to hold, the ranks may have to prepare
        self._boundaries_left = 0  # boundaries before that of the next vote
        self._forced = True
        self._steps_since_vote = 0  # since the last vote
        self._last_vote = 0.0  # when that was

    @property
    def due(self) -> bool:
        """Whether there is a vote at the boundary that comes."""
        return self._forced or not self._boundaries_left

    def force_vote(self) -> None:
        """Have a vote at the next boundary that has none yet."""
        self._forced = True

    def start_vote(self, now: float) -> int:
        """A vote begins, at `now` seconds; the interval in steps that this rank wishes for.

        It doubles at most, because a few steps may have been short by chance.
        """
        seconds, steps = now - self._last_vote, self._steps_since_vote
        self._forced, self._steps_since_vote, self._last_vote = False, 0, now
        if not steps:
            return self.steps
        fitting = MAX_STEPS if seconds <= 0 else int(min(MAX_STEPS, self._seconds * steps / seconds))
        return max(1, min(fitting, 2 * self.steps))

    def finish_vote(self, proposal: int, *, ready: bool) -> None:
        """A vote has ended; whether all ranks are `ready` for as many steps without one as the last one said."""
        self._boundaries_left = (min(proposal, self.steps) if ready else 1) - 1
        self.steps = proposal

    def count_step(self) -> None:
        """A step was made."""
        self._steps_since_vote += 1

    def skip_boundary(self) -> None:
        """A boundary without a vote is behind."""
        self._boundaries_left -= 1
