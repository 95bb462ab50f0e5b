"""Microsoft's Philly traces (Jeon et al., ATC 2019; ``cluster_job_log``): a JSON list of jobs.

A job has status, vc, jobid, user, submitted_time and attempts; an attempt has start_time, end_time and detail, the
servers (ip) with their gpus. Times are ``YYYY-MM-DD HH:MM:SS``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from metasched.simulator.records import Workload
from metasched.simulator.traces.errors import TraceError
from metasched.simulator.traces.recorded_runs import RecordedRun, workload_of_runs

NO_TIME = ("", "None")


def read_philly(path: Path, *, most_gpus: int | None = None, speed_up: float | None = None) -> Workload:
    """The jobs of a log; see ``workload_of_runs`` for ``speed_up``.

    A job's duration is that of all its attempts together, and its GPUs are those of the last attempt. As the log's
    authors say, it has jobs without attempts and attempts without times: such attempts do not count, and jobs without
    other attempts are left out.

    Raises:
        TraceError: the log cannot be used as it is.
    """
    try:
        jobs = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(path, None, None, f"cannot be read ({error.strerror})", "give a file that can") from error
    except UnicodeDecodeError:
        raise TraceError(path, None, None, "is not UTF-8 text", "give a text file") from None
    except json.JSONDecodeError as error:
        raise TraceError(path, error.lineno, None, f"is not JSON ({error.msg})", "mend the line") from None
    except (ValueError, RecursionError) as error:  # endless digits or nesting
        raise TraceError(path, None, None, f"is not JSON ({error})", "mend the file") from None
    if not isinstance(jobs, list):
        raise TraceError(path, None, None, "is not a list of jobs", "give cluster_job_log")
    runs = (_Entry(path, f"[{index}]", job).run(most_gpus) for index, job in enumerate(jobs))
    return workload_of_runs(path.name, (run for run in runs if run is not None), speed_up)


class _Entry:
    """One object of the log, with its position for error messages."""

    def __init__(self, path: Path, where: str, value: Any) -> None:
        self.path = path
        self.where = where
        if not isinstance(value, Mapping):
            raise TraceError(path, None, where, "is not an object", "give an object")
        self.value = value

    def refuse(self, key: str, fault: str, fix: str) -> NoReturn:
        raise TraceError(self.path, None, f"{self.where}.{key}", fault, fix)

    def text(self, key: str) -> str:
        found = self.value.get(key)
        if not isinstance(found, str) or not found:
            self.refuse(key, "is missing" if found is None else f"{found!r} is not a text", "give a text")
        return found

    def entries(self, key: str) -> list[_Entry]:
        found = self.value.get(key)
        if not isinstance(found, list):
            self.refuse(key, "is not a list", "give a list")
        return [_Entry(self.path, f"{self.where}.{key}[{index}]", one) for index, one in enumerate(found)]

    def instant(self, key: str) -> float | None:
        """Unix seconds; None where the log has none."""
        if self.value.get(key) is None or self.value[key] in NO_TIME:
            return None
        text = self.text(key)
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
        except ValueError:
            self.refuse(key, f"{text!r} is not a time", "give YYYY-MM-DD HH:MM:SS")

    def gpus(self) -> int:
        """The number of GPUs that a server lists."""
        found = self.value.get("gpus") or []
        if not isinstance(found, list):
            self.refuse("gpus", f"{found!r:.60} is not a list", "give the names of the GPUs")
        return len(found)

    def run(self, most_gpus: int | None) -> RecordedRun | None:
        """The run of this job; None for a job without GPUs, or without an attempt that has both times."""
        submitted = self.instant("submitted_time")
        if submitted is None:
            self.refuse("submitted_time", "is missing", "give the time of submission")
        seconds, gpus = 0.0, 0
        for attempt in self.entries("attempts"):
            start, end = attempt.instant("start_time"), attempt.instant("end_time")
            if start is None or end is None:
                continue
            if end < start:
                attempt.refuse("end_time", "is before start_time", "give a later time")
            seconds += end - start
            gpus = sum(server.gpus() for server in attempt.entries("detail")) or gpus
        if not seconds or not gpus:
            return None
        if most_gpus is not None and gpus > most_gpus:
            self.refuse(
                "attempts",
                f"the job had {gpus} GPUs, and the cluster can give one job {most_gpus}",
                "use a larger cluster, or leave the job out",
            )
        name, user, vc = self.text("jobid"), self.text("user"), self.value.get("vc")
        return RecordedRun(name, submitted, gpus, seconds, user, None if vc is None else str(vc))
