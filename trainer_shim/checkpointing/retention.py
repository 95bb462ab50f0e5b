"""Which checkpoints are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

KEPT = 2


def kept(manifests: list[Path], unread: Collection[Path]) -> list[Path]:
    """The newest KEPT of the manifests, which come newest first, and what is newer than these.

    One that could not be read does not count as one of them: it may stay that way.
    """
    counted = [manifest for manifest in manifests if manifest not in unread][:KEPT]
    return manifests[: manifests.index(counted[-1]) + 1] if len(counted) == KEPT else manifests
