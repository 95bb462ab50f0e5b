"""The read-only client, for dry runs: reads come from Slurm, writes do nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metasched.slurm.associations import Associations
from metasched.slurm.client import Geometry, Reservation, SlurmClient, SlurmJob, SlurmNode, SlurmSettings


class ReadOnlyClient:
    """A SlurmClient that passes reads on to another client and drops writes; the plan shows what they would be."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client

    def settings(self) -> SlurmSettings:
        """Slurm's settings, from the other client."""
        return self._client.settings()

    def jobs(self) -> Sequence[SlurmJob]:
        """All jobs, from the other client."""
        return self._client.jobs()

    def nodes(self) -> Sequence[SlurmNode]:
        """All nodes, from the other client."""
        return self._client.nodes()

    def reservations(self) -> Sequence[Reservation]:
        """All reservations, from the other client."""
        return self._client.reservations()

    def racks(self) -> Mapping[str, str]:
        """The nodes' racks, from the other client."""
        return self._client.racks()

    def associations(self) -> Associations | None:
        """Fair-shares and limits, from the other client."""
        return self._client.associations()

    def batch_script(self, slurm_job_id: str) -> str:
        """The job's batch script, from the other client."""
        return self._client.batch_script(slurm_job_id)

    def hold(self, slurm_job_id: str) -> None:
        """Dropped: nothing is sent to Slurm."""

    def release(self, slurm_job_id: str) -> None:
        """Dropped: nothing is sent to Slurm."""

    def await_dependency(self, slurm_job_id: str) -> None:
        """Dropped: nothing is sent to Slurm."""

    def update(self, slurm_job_id: str, geometry: Geometry) -> None:
        """Dropped: nothing is sent to Slurm."""

    def stamp(self, slurm_job_id: str, admin_comment: str) -> None:
        """Dropped: nothing is sent to Slurm."""

    def adopt(self, slurm_job_id: str, admin_comment: str) -> None:
        """Dropped: nothing is sent to Slurm."""

    def set_requeue(self, slurm_job_id: str) -> None:
        """Dropped: nothing is sent to Slurm."""

    def signal(self, slurm_job_id: str, signal: str) -> None:
        """Dropped: nothing is sent to Slurm."""

    def requeue_hold(self, slurm_job_id: str) -> None:
        """Dropped: nothing is sent to Slurm."""

    def suspend(self, slurm_job_id: str) -> None:
        """Dropped: nothing is sent to Slurm."""

    def resume(self, slurm_job_id: str) -> None:
        """Dropped: nothing is sent to Slurm."""

    def close(self) -> None:
        """Close the client that reads."""
        self._client.close()
