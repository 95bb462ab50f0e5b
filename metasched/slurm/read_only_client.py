"""The read-only client, for dry runs: reads come from Slurm, writes do nothing."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.slurm.command_line_client import CommandLineClient


class ReadOnlyClient(CommandLineClient):
    """A CommandLineClient that drops all writes; the plan shows what they would be."""

    def _control(self, *words: str) -> None:
        """Drop a command of scontrol."""

    def _write(self, argv: Sequence[str]) -> None:
        """Drop a command of another program."""
