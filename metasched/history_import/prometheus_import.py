"""The import of GPU use by job from a Prometheus that scrapes an exporter of GPUs: jobstats', or NVIDIA's DCGM.

Sources: github.com/PrincetonUniversity/jobstats (its exporter's ``nvidia_gpu_duty_cycle`` and ``nvidia_gpu_jobId``);
NVIDIA's dcgm-exporter, "HPC job mapping" (label ``hpc_job``).
"""

from __future__ import annotations

import http.client
import math
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from metasched.core.errors import MetaschedError
from metasched.history_import.sacct_command import AccountingError
from metasched.history_import.sacct_import import Imported
from metasched.store import GpuUseRecord, Store

WINDOW_SECONDS = 3600
"""Length of a window of time; windows begin at its multiples, so that a repeated import replaces and adds nothing."""
STEP_SECONDS = 60
"""Time between the instants of a window at which Prometheus looks at each GPU."""
IDLE_PERCENT = 1
"""Utilisation below which a GPU counts as idle at an instant."""
_TIMEOUT_SECONDS = 60.0
_MOST_BYTES = 64 * 2**20
_CHUNK_BYTES = 2**20
_JOB_CHARACTERS = 40
_SHOWN_CHARACTERS = 300
_UNKNOWN = "no such job in the database at that time"


class PrometheusError(MetaschedError):
    """Prometheus could not be asked, or its reply cannot be used."""


@dataclass(frozen=True, slots=True)
class Exporter:
    """How an exporter tells the utilisation of GPUs in percent, by job.

    Attributes:
        label: the label that has the Slurm job id.
        expression: a PromQL expression with one series for each GPU and job.
    """

    label: str
    expression: str


EXPORTERS = {
    "dcgm": Exporter("hpc_job", 'DCGM_FI_DEV_GPU_UTIL{hpc_job!=""}'),
    "jobstats": Exporter(
        "jobid",
        "max by (instance, minor_number) (nvidia_gpu_duty_cycle) * on (instance, minor_number) group_right () "
        '(count_values by (instance, minor_number) ("jobid", nvidia_gpu_jobId > 0) > bool 0)',
    ),
}


class _Sample(Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(Struct):
    result: list[_Sample]


class _Reply(Struct):
    status: str
    data: _Data | None = None
    error: str = ""


class Prometheus:
    """A Prometheus, or a service with the same HTTP API.

    Args:
        url: of the server, such as ``http://prometheus:9090``.
        token: sent as a bearer token, unless empty.

    Raises:
        PrometheusError: the URL is not one of HTTP.
    """

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise PrometheusError(f"{url}: give the URL of Prometheus, such as http://prometheus:9090")
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, query: str, at: float, label: str) -> Mapping[str, float]:
        """The values of an instant query, by a label's value.

        Raises:
            PrometheusError: no answer in time, an error of Prometheus, or a reply that is none.
        """
        # By POST: queries may be longer than an URL. A redirect would make it a GET, and is an error here.
        body = urlencode({"query": query, "time": f"{at:.0f}", "timeout": f"{_TIMEOUT_SECONDS:.0f}s"}).encode()
        request = urllib.request.Request(f"{self._url}/api/v1/query", body, self._headers)  # noqa: S310  http alone
        deadline = time.monotonic() + 2 * _TIMEOUT_SECONDS
        try:
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=_TIMEOUT_SECONDS) as answer:
                content = bytearray()
                while chunk := answer.read1(_CHUNK_BYTES):
                    content += chunk
                    if len(content) > _MOST_BYTES:
                        raise PrometheusError(f"{self._url}: a reply of more than {_MOST_BYTES >> 20} MiB")
                    if time.monotonic() > deadline:
                        raise PrometheusError(f"{self._url}: no whole reply within {2 * _TIMEOUT_SECONDS:.0f} s")
        except urllib.error.HTTPError as error:
            with error:
                said = _error_of(error.read(_CHUNK_BYTES))
            raise PrometheusError(f"{self._url} answers {error.code}{said}") from None
        except (OSError, http.client.HTTPException) as error:
            raise PrometheusError(f"{self._url}: {error or type(error).__name__}") from None
        return self._values(bytes(content), label)

    def _values(self, content: bytes, label: str) -> Mapping[str, float]:
        try:
            reply = msgspec.json.decode(content, type=_Reply)
            if reply.status != "success" or reply.data is None:
                raise PrometheusError(f"{self._url}: {reply.error[:_SHOWN_CHARACTERS]}")
            found = {sample.metric.get(label, ""): float(sample.value[1]) for sample in reply.data.result}
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise PrometheusError(f"{self._url}: not a reply of Prometheus ({error})") from None
        return found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object, **kwargs: object) -> None:
        """Return None: the redirect is an error."""


def import_gpu_use(  # noqa: PLR0917  the period has two ends
    store: Store,
    prometheus: Prometheus,
    exporter: Exporter,
    since: float,
    until: float,
    progress: Callable[[int, int], object] | None = None,
    tasks_of: Callable[[Collection[str]], Mapping[str, set[str]]] | None = None,
) -> Imported:
    """Import how much the jobs that the store knows used their GPUs.

    Args:
        store: the store to write.
        prometheus: which is asked three times for each window of time.
        exporter: what Prometheus scrapes.
        since: beginning of the period, unix seconds; the window that it is in counts whole.
        until: its end.
        progress: is called with the number of windows that were imported so far, and of all.
        tasks_of: tells which array tasks have ids of their own (``sacct_command.array_tasks``): exporters name a task
            by that id, the store by its array. It raises AccountingError where it cannot tell; None to leave them out.

    Returns:
        The number of stored windows of jobs, and of those left out, by reason.

    Raises:
        PrometheusError: Prometheus could not be asked; windows before are stored.
    """
    begins = range(int(since // WINDOW_SECONDS) * WINDOW_SECONDS, math.ceil(until), WINDOW_SECONDS)
    result = Imported()
    uids = _Uids(store, tasks_of)
    for number, begin in enumerate(begins, 1):
        window = _window(prometheus, exporter, begin)
        known = uids.of(window, begin)
        rows = []
        for slurm_job_id, seconds in window.items():
            record = _record(slurm_job_id, known.get(slurm_job_id), seconds, begin, result.skipped)
            if record is not None:
                rows.append(record)
        store.set_gpu_use(rows)
        result.jobs += len(rows)
        if progress is not None:
            progress(number, len(begins))
    if uids.problem and (unknown := result.skipped.pop(_UNKNOWN, 0)):
        result.skipped[f"{_UNKNOWN}, and no array task ({uids.problem})"] = unknown
    return result


class _Uids:
    """The jobs of the store by the ids that exporters tell.

    Args:
        store: the store.
        tasks_of: as for ``import_gpu_use``.

    Attributes:
        problem: why array tasks could not be told, in words; "" for no problem.
    """

    def __init__(self, store: Store, tasks_of: Callable[[Collection[str]], Mapping[str, set[str]]] | None) -> None:
        self._store = store
        self._tasks_of = tasks_of
        self._tasks: dict[str, set[str]] = {}
        self.problem = ""

    def of(self, slurm_job_ids: Collection[str], begin: int) -> Mapping[str, str]:
        """Return the uids of those jobs that the store knows in the window that begins then."""
        end = begin + WINDOW_SECONDS
        found = {one: uid for one in slurm_job_ids if (uid := self._store.uid_of(one, begin, end)) is not None}
        unknown = [one for one in slurm_job_ids if one not in found]
        self._ask([one for one in unknown if one not in self._tasks])
        for one in unknown:
            for task in self._tasks.get(one, ()):
                if (uid := self._store.uid_of(task, begin, end)) is not None:
                    found[one] = uid
        return found

    def _ask(self, unknown: Collection[str]) -> None:
        if not unknown or self._tasks_of is None or self.problem:
            return
        try:
            self._tasks |= {one: set() for one in unknown} | dict(self._tasks_of(unknown))
        except AccountingError as error:
            self.problem = str(error)


def _window(prometheus: Prometheus, exporter: Exporter, begin: int) -> Mapping[str, tuple[float, float, float]]:
    """GPU-seconds that were seen, busy and idle, by Slurm job id."""
    gpus, label = exporter.expression, exporter.label

    def over_window(by_job: str) -> Mapping[str, float]:
        query = f"sum_over_time(({by_job})[{WINDOW_SECONDS}s:{STEP_SECONDS}s]) * {STEP_SECONDS}"
        return prometheus.ask(query, begin + WINDOW_SECONDS, label)

    seen = over_window(f"count by ({label}) ({gpus})")
    busy = over_window(f"sum by ({label}) ({gpus}) / 100")
    idle = over_window(f"count by ({label}) ({gpus} < {IDLE_PERCENT})")
    return {job: (seconds, busy.get(job, math.nan), idle.get(job, 0.0)) for job, seconds in seen.items()}


def _record(
    slurm_job_id: str, uid: str | None, seconds: tuple[float, float, float], begin: int, skipped: Counter[str]
) -> GpuUseRecord | None:
    """The record of a window; None, and counted, where it cannot be one."""
    seen, busy, idle = seconds
    if len(slurm_job_id) > _JOB_CHARACTERS or not slurm_job_id.isascii() or not slurm_job_id.strip():
        skipped["not a Slurm job id"] += 1
    elif not (0 < seen < math.inf and 0 <= busy <= seen * 1.001 and 0 <= idle <= seen * 1.001):
        skipped["impossible utilisation"] += 1
    elif uid is None:
        skipped[_UNKNOWN] += 1
    else:
        return GpuUseRecord(uid, begin, seen, min(busy, seen), min(idle, seen))
    return None


def _error_of(content: bytes) -> str:
    """What Prometheus says of an error, after a colon; "" where it says nothing."""
    try:
        said = msgspec.json.decode(content, type=_Reply).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return f": {said[:_SHOWN_CHARACTERS]}" if said else ""
