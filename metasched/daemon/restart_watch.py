"""Restarts of slurmctld, noticed by its boot time.

For some seconds after a restart slurmctld knows the GPUs of its nodes only in part. A job that it starts meanwhile
gets an allocation in which no step can be created ("Invalid generic resource (gres) specification"). Slurm's commands
wait for a controller that is away, and do not tell.
"""

from __future__ import annotations

from collections.abc import Callable

from metasched.slurm.client import SlurmClient
from metasched.slurm.errors import SlurmRestartedError

FRESH_SECONDS = 0.25
"""Time for which a boot time that was read counts as the present one.

A command that meets a controller that is away takes a second at least, so it makes the boot time stale.
"""


class RestartWatch:
    """Compares the boot times that slurmctld reports.

    Args:
        client: to Slurm.
        clock: returns unix seconds.

    Attributes:
        boot_time: as read last, unix seconds of the controller's clock; None before the first read.
    """

    def __init__(self, client: SlurmClient, clock: Callable[[], float]) -> None:
        self.boot_time: float | None = None
        self._client = client
        self._clock = clock
        self._read_at: float | None = None

    def has_restarted(self) -> bool:
        """Return whether slurmctld has restarted since the last read of its boot time; no fresh one is read again.

        Raises:
            SlurmError: slurmctld does not answer.
        """
        if self._read_at is not None and 0 <= self._clock() - self._read_at < FRESH_SECONDS:
            return False
        earlier, self.boot_time = self.boot_time, self._client.boot_time()
        self._read_at = self._clock()
        return earlier is not None and self.boot_time is not None and earlier != self.boot_time

    def require_no_restart(self) -> None:
        """Do nothing where ``has_restarted`` is false.

        Raises:
            SlurmRestartedError: slurmctld has restarted.
            SlurmError: slurmctld does not answer.
        """
        if self.has_restarted():
            raise SlurmRestartedError
