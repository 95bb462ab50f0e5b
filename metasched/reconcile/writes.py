"""What intake and runs ask of Slurm for one job record, at most once in a poll."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from metasched.slurm.client import SlurmJob
from metasched.slurm.errors import SlurmError, SlurmPermissionError, SlurmUnavailableError

log = structlog.get_logger()


class Writes:
    """Writes to Slurm; the tasks of an array that are not split off yet share one record, which is written once.

    Attributes:
        refused: addresses of jobs that Slurm lets only an administrator write.
    """

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self._done: dict[tuple[str, str], bool] = {}

    def begin(self, listed: Sequence[SlurmJob]) -> None:
        """A new poll of what Slurm lists: everything may be written again; jobs that are gone are forgotten."""
        self._done.clear()
        if self.refused:
            self.refused &= {address for job in listed for address in (job.address, str(job.job_id))}

    def once(self, address: str, what: str, write: Callable[[], None]) -> bool:
        """Write, unless this poll has done so already; whether that went well.

        Raises:
            SlurmUnavailableError: Slurm does not answer; other errors are logged, and the next poll writes again.
        """
        if (address, what) not in self._done:
            try:
                write()
            except SlurmUnavailableError:
                raise
            except SlurmError as error:
                if address not in self.refused:  # said already
                    log.warning("intake_write_failed", what=what, job=address, error=str(error))
                if isinstance(error, SlurmPermissionError):
                    self.refused.add(address)
                self._done[address, what] = False
            else:
                self._done[address, what] = True
        return self._done[address, what]
