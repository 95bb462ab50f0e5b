"""The read-only client, for dry runs: reads come from Slurm, writes do nothing."""

from __future__ import annotations

from metasched.slurm.client import Geometry
from metasched.slurm.command_line_client import CommandLineClient


class ReadOnlyClient(CommandLineClient):
    """A CommandLineClient that drops all writes; the plan shows what they would be."""

    def hold(self, slurm_job_id: str) -> None:
        """Do nothing; no command is sent to Slurm."""

    def release(self, slurm_job_id: str) -> None:
        """Do nothing; no command is sent to Slurm."""

    def await_dependency(self, slurm_job_id: str) -> None:
        """Do nothing; no command is sent to Slurm."""

    def update(self, slurm_job_id: str, geometry: Geometry) -> None:
        """Do nothing; no command is sent to Slurm."""

    def stamp(self, slurm_job_id: str, admin_comment: str) -> None:
        """Do nothing; no command is sent to Slurm."""

    def adopt(self, slurm_job_id: str, admin_comment: str) -> None:
        """Do nothing; no command is sent to Slurm."""

    def set_requeue(self, slurm_job_id: str) -> None:
        """Do nothing; no command is sent to Slurm."""

    def signal(self, slurm_job_id: str, signal: str) -> None:
        """Do nothing; no command is sent to Slurm."""

    def requeue_hold(self, slurm_job_id: str) -> None:
        """Do nothing; no command is sent to Slurm."""

    def suspend(self, slurm_job_id: str) -> None:
        """Do nothing; no command is sent to Slurm."""

    def resume(self, slurm_job_id: str) -> None:
        """Do nothing; no command is sent to Slurm."""
