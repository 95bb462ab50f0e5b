"""The SlurmClient that the configuration chooses: Slurm's commands, with or without pyslurm for the writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Literal

import structlog

from metasched.slurm.command_line_client import CommandLineClient
from metasched.slurm.errors import SlurmError, SlurmUnavailableError

log = structlog.get_logger()


def make_client(
    choice: Literal["auto", "cli", "pyslurm"],
    timeout: float,
    env: Mapping[str, str] | None = None,
    before_write: Callable[[], None] = lambda: None,
) -> CommandLineClient:
    """Make the client for a configured choice; ``auto`` uses pyslurm where an installed one works with this Slurm.

    Args:
        choice: the configuration's ``[slurm] client``.
        timeout: seconds that any one command may take.
        env: environment of the commands; None for this process's.
        before_write: called before each command that changes something; an exception from it keeps the command from
            being sent.

    Raises:
        SlurmUnavailableError: ``pyslurm`` is chosen, and no installed pyslurm works with this Slurm.
    """
    client = CommandLineClient(env, timeout, before_write)
    if choice == "cli":
        return client
    if choice == "auto" and find_spec("pyslurm") is None:
        log.info("slurm_client", client="cli", reason="pyslurm is not installed")
        return client
    try:
        versions = client.write_by_pyslurm()
    except SlurmError as error:
        if choice == "pyslurm":
            client.close()
            raise SlurmUnavailableError(
                f'[slurm] client = "pyslurm": {error}; install one for this Slurm, or use auto'
            ) from error
        log.warning("slurm_client", client="cli", reason=str(error))
    else:
        log.info("slurm_client", client="pyslurm", versions=versions)
    return client
