"""The read-only client, for dry runs: reads come from Slurm, writes do nothing."""

from __future__ import annotations

from metasched.slurm.command_line_client import CommandLineClient


class ReadOnlyClient(CommandLineClient):
    """A CommandLineClient that drops all writes; the plan shows what they would be."""

    def _drop(self, *_: object, **__: object) -> None:
        """Do nothing; no command is sent to Slurm."""

    hold = release = await_dependency = update = stamp = adopt = _drop
    set_requeue = signal = requeue_hold = cancel = suspend = resume = _drop
