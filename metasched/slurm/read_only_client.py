"""The read-only client, for dry runs: reads come from Slurm, writes do nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metasched.slurm.command_line_client import CommandLineClient
from metasched.slurm.errors import SlurmError


class ReadOnlyClient(CommandLineClient):
    """A CommandLineClient that drops all writes; the plan shows what they would be."""

    def _drop(self, *_: object, **__: object) -> None:
        """Do nothing; no command is sent to Slurm."""

    def signal(self, slurm_job_ids: Sequence[str], signal: str) -> Mapping[str, SlurmError]:
        """Do nothing, without an error."""
        del slurm_job_ids, signal
        return {}

    hold = release = await_dependency = update = stamp = adopt = _drop
    set_requeue = requeue_hold = cancel = suspend = resume = _drop
