"""Which checkpoints are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

RETAINED_CHECKPOINTS = 2


def retained(manifests: list[Path], unreadable: Collection[Path]) -> list[Path]:
    """The newest RETAINED_CHECKPOINTS of the manifests, which come newest first, and what is newer than these.

    One that could not be read does not count as one of them: it may stay that way.
    """
    counted = [manifest for manifest in manifests if manifest not in unreadable][:RETAINED_CHECKPOINTS]
    return manifests[: manifests.index(counted[-1]) + 1] if len(counted) == RETAINED_CHECKPOINTS else manifests
