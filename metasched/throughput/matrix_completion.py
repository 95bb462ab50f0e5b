"""Matrices of which a part is known, completed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PENALTY = 0.02
"""Of singular values, relative to the largest: what completion takes off them (chosen on Gavel's published table)."""
TURNS = 300
CLOSE = 1e-5
"""Relative change of the completed matrix below which completion ends."""


def complete(matrix: Floats, penalty: float = PENALTY) -> Floats:
    """Fill in the NaN of a matrix that is nearly of low rank: soft-impute (Mazumder, Hastie and Tibshirani, 2010).

    Columns are centred on their known mean (a column without any on the mean of all); the sum of the singular values of
    the rest is what is penalised.

    Args:
        matrix: NaN where not known; something must be known.
        penalty: taken off singular values, relative to the largest; above 0, below 1.
    """
    known = ~np.isnan(matrix)
    counts = known.sum(axis=0)
    sums = np.where(known, matrix, 0.0).sum(axis=0)
    middle = np.where(counts > 0, sums / np.maximum(counts, 1), sums.sum() / known.sum())
    given = np.where(known, matrix - middle, 0.0)
    found = given
    for _ in range(TURNS):
        after = _shrunk(np.where(known, given, found), penalty)
        done = np.linalg.norm(after - found) <= CLOSE * max(float(np.linalg.norm(found)), CLOSE)
        found = after
        if done:
            break
    return np.where(known, matrix, found + middle)


def completed_parts(matrix: Floats) -> Floats:
    """The same for parts of something: what is filled in is 0 to 1."""
    return np.where(np.isnan(matrix), np.clip(complete(matrix), 0.0, 1.0), matrix)


def closest(rows: Floats, row: Floats) -> int:
    """The number of the row that is closest to another one, by Euclid's distance; the first among equals."""
    return int(np.argmin(np.linalg.norm(np.nan_to_num(rows - row[None, :]), axis=1)))


def _shrunk(matrix: Floats, penalty: float) -> Floats:
    """A matrix with smaller singular values, which are found on its shorter side, since that is quicker."""
    if matrix.shape[0] > matrix.shape[1]:
        return _shrunk(matrix.T, penalty).T
    squares, left = np.linalg.eigh(matrix @ matrix.T)
    values = np.sqrt(np.maximum(squares, 0.0))
    kept = values > penalty * values[-1]
    left, values = left[:, kept], values[kept]
    found: Floats = (left * (1.0 - penalty * values[-1:] / values)) @ (left.T @ matrix)
    return found
