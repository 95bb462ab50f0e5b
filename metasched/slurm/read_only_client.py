"""A client that reads Slurm and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

    def racks(self) -> Mapping[str, str]:
        """As Slurm has them."""
        return self._client.racks()

    def associations(self) -> Associations | None:
        """As Slurm has them."""
        return self._client.associations()

    def batch_script(self, slurm_job_id: str) -> str:
        """As Slurm has it."""
        return self._client.batch_script(slurm_job_id)

    def hold(self, slurm_job_id: str) -> None:
        """Nothing is done."""

    def release(self, slurm_job_id: str) -> None:
        """Nothing is done."""

    def await_dependency(self, slurm_job_id: str) -> None:
        """Nothing is done."""

    def update(self, slurm_job_id: str, geometry: Geometry) -> None:
        """Nothing is done."""

    def stamp(self, slurm_job_id: str, admin_comment: str) -> None:
        """Nothing is done."""

    def adopt(self, slurm_job_id: str, admin_comment: str) -> None:
        """Nothing is done."""

    def set_requeue(self, slurm_job_id: str) -> None:
        """Nothing is done."""

    def signal(self, slurm_job_id: str, signal: str) -> None:
        """Nothing is done."""

    def requeue_hold(self, slurm_job_id: str) -> None:
        """Nothing is done."""

    def suspend(self, slurm_job_id: str) -> None:
        """Nothing is done."""

    def resume(self, slurm_job_id: str) -> None:
        """Nothing is done."""

    def close(self) -> None:
        """Close the client behind it."""
        self._client.close()
