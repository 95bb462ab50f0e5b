"""Completion of partly known matrices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PENALTY = 0.02
"""The shrinkage of singular values, relative to the largest one; chosen on Gavel's published table."""
MAX_ITERATIONS = 300
TOLERANCE = 1e-5
"""The relative change of the matrix below which iteration ends."""


def complete(matrix: Floats, penalty: float = PENALTY) -> Floats:
    """Fill in the NaN of a matrix of approximately low rank: soft-impute (Mazumder, Hastie and Tibshirani, 2010).

    Columns are centred on the mean of their known values (a column without any on the mean of all), then the nuclear
    norm (the sum of singular values) is penalised.

    Args:
        matrix: shape (rows, columns), NaN where not known; at least one value must be known.
        penalty: the shrinkage of singular values, relative to the largest one; above 0, below 1.

    Returns:
        The matrix without NaN; known values are unchanged.
    """
    known = ~np.isnan(matrix)
    counts = known.sum(axis=0)
    sums = np.where(known, matrix, 0.0).sum(axis=0)
    middle = np.where(counts > 0, sums / np.maximum(counts, 1), sums.sum() / known.sum())
    given = np.where(known, matrix - middle, 0.0)
    found = given
    for _ in range(MAX_ITERATIONS):
        after = _shrunk(np.where(known, given, found), penalty)
        done = np.linalg.norm(after - found) <= TOLERANCE * max(float(np.linalg.norm(found)), TOLERANCE)
        found = after
        if done:
            break
    return np.where(known, matrix, found + middle)


def complete_fractions(matrix: Floats) -> Floats:
    """As ``complete``, for a matrix of fractions: filled-in values are between 0 and 1."""
    return np.where(np.isnan(matrix), np.clip(complete(matrix), 0.0, 1.0), matrix)


def closest_row(rows: Floats, row: Floats) -> int:
    """The index of the row at the least Euclidean distance from ``row``; the first among equals."""
    return int(np.argmin(np.linalg.norm(np.nan_to_num(rows - row[None, :]), axis=1)))


def _shrunk(matrix: Floats, penalty: float) -> Floats:
    """The matrix with its singular values shrunk, by the eigenvalues of the smaller Gram matrix, which is faster."""
    if matrix.shape[0] > matrix.shape[1]:
        return _shrunk(matrix.T, penalty).T
    squares, left = np.linalg.eigh(matrix @ matrix.T)
    values = np.sqrt(np.maximum(squares, 0.0))
    kept = values > penalty * values[-1]
    left, values = left[:, kept], values[kept]
    found: Floats = (left * (1.0 - penalty * values[-1:] / values)) @ (left.T @ matrix)
    return found
