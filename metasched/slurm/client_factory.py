"""Which client there is: Slurm's commands, with or without pyslurm for the writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Literal

import structlog

from metasched.slurm.command_line_client import CommandLineClient
from metasched.slurm.errors import SlurmError, SlurmUnavailableError

Choice = Literal["auto", "cli", "pyslurm"]

log = structlog.get_logger()


def make_client(
    choice: Choice,
    timeout: float,
    env: Mapping[str, str] | None = None,
    before_write: Callable[[], None] = lambda: None,
) -> CommandLineClient:
    """The client that was chosen; ``auto`` takes pyslurm where there is one that works with this Slurm.

    Args:
        choice: as configured.
        timeout: seconds that any one command may take.
        env: of the commands; None for our own.
        before_write: called before each command that changes something; what it raises keeps that from being sent.

    Raises:
        SlurmUnavailableError: ``pyslurm`` was chosen, and there is none that works.
    """
    client = CommandLineClient(env, timeout, before_write)
    if choice == "cli":
        return client
    if choice == "auto" and find_spec("pyslurm") is None:
        log.info("slurm_client", client="cli", reason="pyslurm is not installed")
        return client
    try:
        found = client.write_by_pyslurm()
    except SlurmError as error:
        if choice == "pyslurm":
            client.close()
            raise SlurmUnavailableError(
                f'[slurm] client = "pyslurm": {error}; install one for this Slurm, or use auto'
            ) from error
        log.warning("slurm_client", client="cli", reason=str(error))
    else:
        log.info("slurm_client", client="pyslurm", versions=found)
    return client
