"""Chance that can be written down: a generator whose state is its seed and how much of it is used up."""

from __future__ import annotations

import random
from typing import Self

WORD = 32  # bits that the generator makes at a time
LIFE = 2**26  # words of one seed: whoever resumes after more of them begins with another
SKIP = 2**16  # words that are passed over at a time


class SeededRng(random.Random):
    """``random.Random``, counting the words that it has made, so that a pure policy can go on where it was.

    Attributes:
        used: words made since the seed.
    """

    used: int = 0

    @classmethod
    def resume(cls, seed: int, used: int = 0) -> Self:
        """The generator of a seed after so many words."""
        life, words = divmod(used, LIFE)
        chance = cls(f"{seed} {life}" if life else seed)
        for done in range(0, words, SKIP):
            chance.getrandbits(WORD * min(SKIP, words - done))
        chance.used = used
        return chance

    def getrandbits(self, k: int, /) -> int:
        """A number of k random bits."""
        self.used += -(-k // WORD)
        return super().getrandbits(k)

    def random(self) -> float:
        """A number in [0, 1)."""
        self.used += 2
        return super().random()
