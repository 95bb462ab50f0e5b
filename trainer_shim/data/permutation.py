"""A seekable permutation of a data set's indices, in constant memory.

A Feistel network over pairs (left, right) of Z_a x Z_b permutes the numbers below a * b. The product is at least the
size of the data set, and exceeds the size by at most a. A number that leaves the data set is permuted again until the
number is back (cycle walking). Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002,
sections 4 and 5. The network is no cipher: its round function is a fast hash.
"""

from __future__ import annotations

import math

import torch

from trainer_shim.data.seeding import derive_seed

LARGEST_SIZE = 2**60  # so that no product below overflows 63 bits
_ROUNDS = 8
_ROUNDS_OF_SMALL = 16  # with fewer, some permutations of some numbers are much more frequent than others
_SMALL = 2**16
_BITS = 0xFFFFFFFF  # the round function has values of 32 bits


class Permutation:
    """A permutation of the numbers below `size`, of which any part can be computed alone.

    Args:
        size: the number of indices, from 1 to `LARGEST_SIZE`.
        *seed: the numbers and words that determine the permutation.

    Raises:
        ValueError: `size` is not in that range.
    """

    def __init__(self, size: int, *seed: int | str) -> None:
        if not 1 <= size <= LARGEST_SIZE:
            raise ValueError(f"a permutation of {size} numbers: from 1 to {LARGEST_SIZE} are possible")
        self._size = size
        # An even number: with two odd factors, all permutations would be even ones.
        self._left = 2 * math.ceil((math.isqrt(size - 1) + 1) / 2)
        self._right = -(-size // self._left)
        rounds = _ROUNDS_OF_SMALL if size < _SMALL else _ROUNDS
        derived = (derive_seed(*seed, number) for number in range(rounds))
        self._keys = [(key & _BITS, key >> 32) for key in derived]

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the indices at some positions.

        Args:
            positions: numbers below the size, int64 on the CPU, of any shape.

        Returns:
            A tensor of the same shape and type.
        """
        found = self._permuted(positions)
        while (outside := found >= self._size).any():
            found[outside] = self._permuted(found[outside])
        return found

    def _permuted(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the numbers below `left * right` after one pass through the network."""
        left = torch.div(numbers, self._right, rounding_mode="floor")
        right = numbers - left * self._right
        changed, changed_size, other, other_size = left, self._left, right, self._right
        for keys in self._keys:
            changed += _hashed(other, keys, changed_size)
            changed -= (changed >= changed_size) * changed_size
            changed, changed_size, other, other_size = other, other_size, changed, changed_size
        return left * self._right + right


def _hashed(values: torch.Tensor, keys: tuple[int, int], limit: int) -> torch.Tensor:
    """Return a hash below `limit` of each value below 2**31, by multiplications and shifts of 32-bit numbers."""
    found = values ^ keys[0]
    found ^= found >> 16
    found *= 0x7FEB352D
    found &= _BITS
    found ^= (found >> 15) ^ keys[1]
    found *= 0x45D9F3B
    found &= _BITS
    found ^= found >> 16
    found *= limit
    found >>= 32
    return found
