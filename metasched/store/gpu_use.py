"""How much jobs used their GPUs, as another monitor saw it, in windows of time (``gpu_use``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from metasched.store.connection import Connection
from metasched.store.records import GpuUseRecord

_SUMS = "SELECT total(gpu_seconds), total(busy_gpu_seconds), total(idle_gpu_seconds) FROM gpu_use"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Sums of GPU-seconds that were seen.

    Attributes:
        gpu_seconds: all of them.
        busy: mean utilisation, from 0 to 1.
        idle: part of them in which a GPU did nothing, from 0 to 1.
    """

    gpu_seconds: float
    busy: float
    idle: float


class GpuUseRows(Connection):
    """Stores and reads windows of GPU use."""

    def set_gpu_use(self, records: Iterable[GpuUseRecord]) -> None:
        """Insert windows, or replace those of the same job and time."""
        with self.transaction():
            self._write_many("INSERT OR REPLACE INTO gpu_use VALUES (?, ?, ?, ?, ?)", map(astuple, records))

    def uid_of(self, slurm_job_id: str, begin: float, end: float) -> str | None:
        """The job that had a Slurm job id within a period, the latest where Slurm used the id again; None for none."""
        row = self._row(
            "SELECT uid FROM jobs WHERE slurm_job_id = ? AND submitted < ? AND (finished IS NULL OR finished > ?) "
            "ORDER BY submitted DESC LIMIT 1",
            [slurm_job_id, end, begin],
        )
        return None if row is None else str(row[0])

    def gpu_use(self, uid: str) -> GpuUse | None:
        """The use of a job's GPUs; None where nothing is known."""
        return self._gpu_use(f"{_SUMS} WHERE uid = ?", [uid])

    def gpu_use_of_earlier(self, user: str, name: str) -> GpuUse | None:
        """The use of GPUs by a user's jobs of one name."""
        return self._gpu_use(f"{_SUMS} JOIN jobs USING (uid) WHERE jobs.name = ? AND jobs.user = ?", [name, user])

    def gpu_use_since(self, at: float) -> GpuUse | None:
        """The use of all jobs' GPUs since an instant."""
        return self._gpu_use(f"{_SUMS} WHERE at >= ?", [at])

    def _gpu_use(self, sql: str, parameters: Sequence[object]) -> GpuUse | None:
        row = self._row(sql, parameters)
        if row is None or not row[0]:
            return None
        seen, busy, idle = row
        return GpuUse(seen, busy / seen, idle / seen)
