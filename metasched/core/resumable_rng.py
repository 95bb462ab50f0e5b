"""Random numbers whose generator can be stored in a few bytes: as a seed and a count of words."""

from __future__ import annotations

import random
from typing import Self

WORD = 32  # bits that the generator makes at a time
LIFE = 2**26  # words of one seed; a generator that is resumed after more of them has another seed
SKIP = 2**16  # words that are skipped at a time


class ResumableRng(random.Random):
    """``random.Random`` with a count of the words that it has made, so that a pure policy can resume the sequence.

    Attributes:
        used: 32-bit words made since the seed.
    """

    used: int = 0

    @classmethod
    def resume(cls, seed: int, used: int = 0) -> Self:
        """A generator with a seed, as it is after ``used`` words of 32 bits."""
        life, words = divmod(used, LIFE)
        rng = cls(f"{seed} {life}" if life else seed)
        for done in range(0, words, SKIP):
            rng.getrandbits(WORD * min(SKIP, words - done))
        rng.used = used
        return rng

    def getrandbits(self, k: int, /) -> int:
        """A non-negative integer of k random bits."""
        self.used += -(-k // WORD)
        return super().getrandbits(k)

    def random(self) -> float:
        """A random number in [0, 1), uniformly distributed."""
        self.used += 2
        return super().random()
