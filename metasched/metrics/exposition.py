"""The text that Prometheus scrapes, made from a sample by prometheus-client.

The number of series is bounded: no label is a job, a user or a node, accounts beyond those with metrics of their own
are ``other``, and so are GPU types beyond ``MAX_TYPES``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from metasched.metrics.sample import Histogram, Sample

MAX_SERIES = 2000
MAX_TYPES = 8
MAX_CODES = 60
OTHER = "other"
_PREFIX = "metasched_"


def exposition(sample: Sample) -> bytes:
    """Return the metrics of a sample in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(sample))
    return generate_latest(registry)


class _Collector:
    """Yields the metrics of one sample."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def collect(self) -> Iterator[Metric]:
        """Yield each family of metrics."""
        sample = self._sample
        yield from _state(sample)
        yield from _cluster(sample)
        yield from _history(sample)


def _state(sample: Sample) -> Iterator[Metric]:
    """Yield the metrics of the daemon itself."""
    yield _gauges(
        "build_info", "1, with the version and the policy of the daemon.", ("version", "policy"), {_build(sample): 1}
    )
    if sample.last_poll is not None:
        yield _gauge(
            "last_poll_timestamp_seconds", "Instant of the last poll in which Slurm answered.", sample.last_poll
        )
    yield _gauge("slurm_reachable", "Whether Slurm answered in the last poll: 1 or 0.", int(sample.slurm_reachable))
    yield _gauges("poll_seconds", "Wall time of each step of the last poll.", ("step",), sample.poll_seconds)
    if sample.decide_seconds is not None:
        yield _gauge("decide_seconds", "Wall time of the last round's decision.", sample.decide_seconds)
    yield _gauge("round", "Number of the last round.", sample.rounds)
    yield _gauges(
        "free_bytes_ratio",
        "Free part of the file system of a directory of the configuration.",
        ("directory",),
        sample.free_bytes_ratio,
    )


def _build(sample: Sample) -> tuple[str, str]:
    return sample.version, sample.policy


def _cluster(sample: Sample) -> Iterator[Metric]:
    """Yield the metrics of the present jobs and GPUs."""
    yield _gauges("jobs", "Live jobs by state.", ("state",), sample.jobs)
    yield _gauges("waiting", "Waiting jobs by the code of their reason.", ("reason",), _most(sample.waiting, MAX_CODES))
    yield _gauge(
        "waiting_jobs_that_fit", "Waiting jobs whose fewest GPUs are free on nodes that take jobs.", sample.fitting
    )
    types = set(
        _most({kind: sum(n for (t, _), n in sample.gpus.items() if t == kind) for kind, _ in sample.gpus}, MAX_TYPES)
    )
    gpus: dict[tuple[str, str], float] = {}
    for (kind, use), count in sample.gpus.items():
        key = (kind if kind in types else OTHER, use)
        gpus[key] = gpus.get(key, 0) + count
    yield _gauges("gpus", "GPUs by type and use.", ("type", "use"), gpus)
    if sample.account_gpus is not None:
        yield _gauges("account_gpus", "GPUs that an account's jobs hold now.", ("account",), sample.account_gpus)
    for name, text, values in (
        ("rho_worst", "Largest finish-time fairness of the jobs that ended in the last seven days.", sample.rho_worst),
        ("unfair_ratio", "Part of the jobs that ended in the last seven days with a rho above 1.", sample.unfair_ratio),
    ):
        if values:
            yield _gauges(name, text, ("definition",), values)


def _history(sample: Sample) -> Iterator[Metric]:
    """Yield counters and histograms."""
    if sample.account_gpu_seconds is not None:
        types = {kind for _, kind in sample.account_gpu_seconds}
        kept = set(sorted(types)[:MAX_TYPES])
        seconds: dict[tuple[str, str], float] = {}
        for (account, kind), value in sample.account_gpu_seconds.items():
            key = (account, kind if kind in kept else OTHER)
            seconds[key] = seconds.get(key, 0.0) + value
        yield _counters("account_gpu_seconds", "GPU-seconds that an account's jobs held.", ("account", "type"), seconds)
    yield _counters("runs_ended", "Ended runs by cause.", ("cause",), sample.runs_ended)
    yield _counters("actions", "Actions by kind and outcome.", ("kind", "outcome"), sample.actions)
    yield _counters(
        "overhead_gpu_seconds", "GPU-seconds of ended runs that did not train, by part.", ("part",), sample.overhead
    )
    yield _histogram("wait_seconds", "Seconds from a job's submission to its first start.", sample.waits)
    yield _histogram("completion_seconds", "Seconds from a job's submission to its completion.", sample.completions)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _gauges(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    return _filled(GaugeMetricFamily(_PREFIX + name, text, labels=labels), values)


def _counters(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    return _filled(CounterMetricFamily(_PREFIX + name, text, labels=labels), values)


def _filled(family: Any, values: Mapping[Any, float]) -> Metric:
    for key, value in sorted(values.items()):
        family.add_metric([_text(part) for part in (key if isinstance(key, tuple) else (key,))], value)
    filled: Metric = family
    return filled


def _histogram(name: str, text: str, found: Histogram) -> Metric:
    total, buckets = 0.0, []
    for bound in sorted({*found.buckets, math.inf}):
        total += found.buckets.get(bound, 0.0)
        buckets.append(("+Inf" if bound == math.inf else f"{bound:g}", total))
    family: Metric = HistogramMetricFamily(_PREFIX + name, text, buckets=buckets, sum_value=found.total)
    return family


def _most(values: Mapping[str, int], most: int) -> dict[str, int]:
    """Return the largest values, with the others as one."""
    order = sorted(values, key=lambda key: (-values[key], key))
    kept = {key: values[key] for key in order[:most]}
    if rest := order[most:]:
        kept[OTHER] = kept.get(OTHER, 0) + sum(values[key] for key in rest)
    return kept


def _text(value: str) -> str:
    """Return a label's value: printable, at most 64 characters."""
    return "".join(char if char.isprintable() else "?" for char in value[:64])


def counters_in(text: bytes) -> dict[bytes, float]:
    """Return the values of counters and histograms in an exposition, by series; lines that are none are left out."""
    found = {}
    for line in text.splitlines():
        series, _, value = line.rpartition(b" ")
        if _is_counted(series):
            with contextlib.suppress(ValueError):
                found[series] = float(value)
    return found


def not_below(text: bytes, floors: Mapping[bytes, float]) -> bytes:
    """Return an exposition whose counters are at least as high as floors: what another daemon has published.

    A daemon that takes over goes on from a copy of the database, which is some time old.
    """
    lines = []
    for line in text.splitlines():
        series, _, value = line.rpartition(b" ")
        floor = floors.get(series)
        lines.append(line if floor is None or float(value) >= floor else b"%b %r" % (series, floor))
    return b"\n".join([*lines, b""])


def _is_counted(series: bytes) -> bool:
    return series.partition(b"{")[0].endswith((b"_total", b"_bucket", b"_count", b"_sum"))
