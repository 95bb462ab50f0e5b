"""The writes of intake and run tracking to Slurm: each at most once in a poll, with a backoff after an outage."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog

from metasched.slurm.backoff import Backoff
from metasched.slurm.client import SlurmJob
from metasched.slurm.errors import SlurmError, SlurmPermissionError, SlurmUnavailableError
from metasched.slurm.write_budget import WriteBudget

log = structlog.get_logger()


class ThrottledWrites:
    """Writes each job record at most once in a poll; array tasks that are not split off yet share one record.

    A write that Slurm does not answer ends its poll. It is then put off for a while, so that it does not end every
    later poll at the same job.

    Attributes:
        budget: of the writes that mark jobs in one poll; users decide by their submissions how many there are.
        refused: Slurm ids of jobs that Slurm lets only an administrator write.
    """

    def __init__(self) -> None:
        self.budget = WriteBudget()
        self.refused: set[str] = set()
        self._done: dict[tuple[str, str], bool] = {}
        self._backoff = Backoff()  # by slurm_job_id and what was written
        self._now = 0.0
        self._outage_seconds = 0.0

    def begin_poll(self, listed: Sequence[SlurmJob], now: float, outage_seconds: float) -> None:
        """Allow every write again, and drop refusals and failures of jobs that Slurm no longer lists.

        Args:
            listed: every job that Slurm lists.
            now: unix seconds.
            outage_seconds: after a write without an answer, time until the daemon writes anything else.
        """
        self._done.clear()
        self.budget.renew()
        self._now, self._outage_seconds = now, outage_seconds
        if not self.refused and not self._backoff:
            return
        listed_ids = {slurm_job_id for job in listed for slurm_job_id in (job.slurm_job_id, str(job.job_id))}
        self.refused &= listed_ids
        self._backoff.retain(lambda slurm_job_id, _: slurm_job_id in listed_ids)

    def is_put_off(self, slurm_job_id: str, what: str) -> bool:
        """Whether this write failed so recently that it is not tried in this poll."""
        return self._backoff.must_wait(slurm_job_id, what, self._now)

    def mark(self, slurm_job_id: str, what: str, write: Callable[[], None]) -> bool:
        """Write as ``once`` does, within the budget of the poll: what is over the budget is left to the next poll.

        Args:
            slurm_job_id: of the job record.
            what: name of the write.
            write: makes the write.

        Returns:
            Whether Slurm has accepted the write in this poll.

        Raises:
            SlurmUnavailableError: Slurm does not answer.
        """
        if (slurm_job_id, what) in self._done or self.is_put_off(slurm_job_id, what):
            return self._done.get((slurm_job_id, what), False)
        return self.budget.admits() and self.once(slurm_job_id, what, write)

    def once(self, slurm_job_id: str, what: str, write: Callable[[], None]) -> bool:
        """Write, unless this poll has done so already or the write is put off.

        Args:
            slurm_job_id: of the job record.
            what: name of the write.
            write: makes the write.

        Returns:
            Whether Slurm has accepted the write in this poll. A refusal is logged, and the next poll writes again.

        Raises:
            SlurmUnavailableError: Slurm does not answer.
        """
        if (slurm_job_id, what) not in self._done:
            self._done[slurm_job_id, what] = not self.is_put_off(slurm_job_id, what) and self._written(
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
            if slurm_job_id not in self.refused:  # else it is logged already
                log.warning("write_failed", what=what, job=slurm_job_id, error=str(error))
            if isinstance(error, SlurmPermissionError):
                self.refused.add(slurm_job_id)
            return False
        self._backoff.record_success(slurm_job_id, what)
        return True
