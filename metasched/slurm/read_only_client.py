"""A client that reads Slurm and writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metasched.slurm.associations import Associations
from metasched.slurm.client import Geometry, Reservation, SlurmClient, SlurmJob, SlurmNode, SlurmSettings


class ReadOnlyClient:
    """Passes reads on and swallows writes; what would be written is what the plan says."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client

    def settings(self) -> SlurmSettings:
        """As Slurm has them."""
        return self._client.settings()

    def jobs(self) -> Sequence[SlurmJob]:
        """As Slurm has them."""
        return self._client.jobs()

    def nodes(self) -> Sequence[SlurmNode]:
        """As Slurm has them."""
        return self._client.nodes()

    def reservations(self) -> Sequence[Reservation]:
        """As Slurm has them."""
        return self._client.reservations()

    def associations(self) -> Associations | None:
        """As Slurm has them."""
        return self._client.associations()

    def batch_script(self, address: str) -> str:
        """As Slurm has it."""
        return self._client.batch_script(address)

    def submit(self, script: Path, arguments: Sequence[str] = ()) -> str:
        """Nothing is submitted."""
        del script, arguments
        return "0"

    def hold(self, address: str) -> None:
        """Nothing is done."""

    def release(self, address: str) -> None:
        """Nothing is done."""

    def await_dependency(self, address: str) -> None:
        """Nothing is done."""

    def update(self, address: str, geometry: Geometry) -> None:
        """Nothing is done."""

    def stamp(self, address: str, admin_comment: str) -> None:
        """Nothing is done."""

    def adopt(self, address: str, admin_comment: str) -> None:
        """Nothing is done."""

    def set_requeue(self, address: str) -> None:
        """Nothing is done."""

    def signal(self, address: str, signal: str) -> None:
        """Nothing is done."""

    def requeue_hold(self, address: str) -> None:
        """Nothing is done."""

    def suspend(self, address: str) -> None:
        """Nothing is done."""

    def resume(self, address: str) -> None:
        """Nothing is done."""

    def cancel(self, address: str) -> None:
        """Nothing is done."""

    def launch(self, address: str, argv: Sequence[str], timeout: float) -> str:
        """Nothing is run."""
        del address, argv, timeout
        return ""

    def close(self) -> None:
        """Close the client behind it."""
        self._client.close()
