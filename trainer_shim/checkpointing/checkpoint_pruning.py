"""Which checkpoints are retained when older ones are removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

RETAINED_CHECKPOINTS = 2


def retained(manifests: list[Path], unreadable: Collection[Path]) -> list[Path]:
    """Return the newest RETAINED_CHECKPOINTS manifests that are readable, and every manifest that is newer than these.

    An unreadable manifest does not count, because it may stay unreadable.

    Args:
        manifests: all manifests, the newest one first.
        unreadable: the manifests among them that could not be read.
    """
    counted = [manifest for manifest in manifests if manifest not in unreadable][:RETAINED_CHECKPOINTS]
    return manifests[: manifests.index(counted[-1]) + 1] if len(counted) == RETAINED_CHECKPOINTS else manifests
