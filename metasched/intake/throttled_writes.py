"""What intake and runs ask of Slurm for one job record, at most once in a poll."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog

from metasched.slurm.backoff import Backoff
from metasched.slurm.client import SlurmJob
from metasched.slurm.errors import SlurmError, SlurmPermissionError, SlurmUnavailableError

log = structlog.get_logger()


class ThrottledWrites:
    """Writes to Slurm; the tasks of an array that are not split off yet share one record, which is written once.

    A write that Slurm did not answer ends its poll, and is left alone for a while, so that it does not end every poll
    at the same job.

    Attributes:
        refused: addresses of jobs that Slurm lets only an administrator write.
    """

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self._done: dict[tuple[str, str], bool] = {}
        self._backoff = Backoff()  # by slurm_job_id and what was written
        self._now = 0.0
        self._outage_seconds = 0.0

    def begin(self, listed: Sequence[SlurmJob], now: float, outage_seconds: float) -> None:
        """A new poll of what Slurm lists: everything may be written again; jobs that are gone are forgotten.

        Args:
            listed: all jobs.
            now: unix seconds.
            outage_seconds: after a command without an answer, until anything else is done.
        """
        self._done.clear()
        self._now, self._outage_seconds = now, outage_seconds
        there = {slurm_job_id for job in listed for slurm_job_id in (job.slurm_job_id, str(job.job_id))}
        self.refused &= there
        self._backoff.retain(lambda slurm_job_id, _: slurm_job_id in there)

    def rests(self, slurm_job_id: str, what: str) -> bool:
        """Whether Slurm did not answer this lately, so that it is not tried now."""
        return self._backoff.must_wait(slurm_job_id, what, self._now)

    def once(self, slurm_job_id: str, what: str, write: Callable[[], None]) -> bool:
        """Write, unless this poll has done so already or it rests; whether that went well.

        Raises:
            SlurmUnavailableError: Slurm does not answer; other errors are logged, and the next poll writes again.
        """
        if (slurm_job_id, what) not in self._done:
            self._done[slurm_job_id, what] = not self.rests(slurm_job_id, what) and self._written(
                slurm_job_id, what, write
            )
        return self._done[slurm_job_id, what]

    def _written(self, slurm_job_id: str, what: str, write: Callable[[], None]) -> bool:
        begun = time.monotonic()
        try:
            write()
        except SlurmUnavailableError:
            outage = time.monotonic() - begun + self._outage_seconds
            self._backoff.record_failure(slurm_job_id, what, self._now, outage)
            raise
        except SlurmError as error:
            if slurm_job_id not in self.refused:  # said already
                log.warning("write_failed", what=what, job=slurm_job_id, error=str(error))
            if isinstance(error, SlurmPermissionError):
                self.refused.add(slurm_job_id)
            return False
        self._backoff.record_success(slurm_job_id, what)
        return True
