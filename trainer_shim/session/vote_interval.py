"""How often the ranks vote: at every step boundary where steps are long, at every k-th where they are short.

A vote costs some hundred microseconds of each rank's time, and takes them out of their stride. A stop that is agreed on
within a quarter of a second is soon enough.
"""

from __future__ import annotations

import math

LATENCY = 0.25  # seconds between two votes, as far as the steps so far tell
MOST = 16  # steps between two votes: bounds what it costs where steps become slower of a sudden


class Cadence:
    """Counts a rank's step boundaries from vote to vote. All ranks count alike: each call is made by all or none.

    The interval is agreed on with the votes themselves: rank 0 adds its wish to them, the others nothing. `at_most` is
    the most seconds between two votes, where less than usual is wanted.
    """

    def __init__(self, at_most: float = math.inf) -> None:
        self._latency = min(LATENCY, at_most)
        self.interval = 1  # steps, as agreed on by the last vote; for it to hold, the ranks may have to prepare
        self._left = 0  # boundaries before that of the next vote
        self._hastened = True
        self._steps = 0  # since the last vote
        self._voted = 0.0  # when that was

    @property
    def due(self) -> bool:
        """Whether there is a vote at the boundary that comes."""
        return self._hastened or not self._left

    def hasten(self) -> None:
        """Have a vote at the next boundary that has none yet."""
        self._hastened = True

    def begin(self, now: float) -> int:
        """A vote begins, at `now` seconds; the interval in steps that this rank wishes for.

        It doubles at most, because a few steps may have been short by chance.
        """
        seconds, steps = now - self._voted, self._steps
        self._hastened, self._steps, self._voted = False, 0, now
        if not steps:
            return self.interval
        fitting = MOST if seconds <= 0 else int(min(MOST, self._latency * steps / seconds))
        return max(1, min(fitting, 2 * self.interval))

    def agree(self, wish: int, *, ready: bool) -> None:
        """A vote has ended; whether all ranks are `ready` for as many steps without one as the last one said."""
        self._left = (min(wish, self.interval) if ready else 1) - 1
        self.interval = wish

    def step(self) -> None:
        """A step was made."""
        self._steps += 1

    def skip(self) -> None:
        """A boundary without a vote is behind."""
        self._left -= 1
