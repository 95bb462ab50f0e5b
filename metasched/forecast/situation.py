"""The input of a queue forecast, read from the daemon's database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from metasched.core.errors import MetaschedError
from metasched.core.model import Job, Snapshot
from metasched.core.policy import Policy, Registry
from metasched.forecast.calibration import Calibration
from metasched.forecast.durations import EarlierJob, EarlierJobs
from metasched.forecast.queue_forecast import Effort, Situation, nearest_jobs
from metasched.forecast.uncertainty import ASSUMED_SECONDS
from metasched.replay.replay import policy_of
from metasched.replay.snapshot_codec import decode
from metasched.simulator.records import Settings
from metasched.simulator.traces.errors import TraceError
from metasched.simulator.traces.history import past_job
from metasched.simulator.what_if import Estimate, estimate_all, schedulable_jobs
from metasched.store import JobRecord, RoundRecord, Store

DAY = 86400.0
DAYS = 7.0
"""The days whose submissions are the model of later arrivals."""
MOST_EARLIER_JOBS = 5000
"""Most jobs that have ended that are read for one forecast, the latest."""
STARTS, ENDS = "start", "end"
"""The kinds of instants that are forecast, as the store names them."""


class NoRoundError(MetaschedError):
    """There is no round to continue from."""


def latest_round(store: Store) -> tuple[RoundRecord, Snapshot]:
    """Return the latest round whose snapshot is stored, and the snapshot.

    Raises:
        NoRoundError: there is none, or its snapshot is not kept.
        CodecError: another version's snapshot.
    """
    record = store.round_to_follow()
    if record is None:
        raise NoRoundError(f"{store.path}: no round was decided yet")
    data = store.snapshot(record.round)
    if data is None:
        raise NoRoundError(
            f"{store.path}: no snapshot of round {record.round} is kept; give [history] snapshots_bytes a value above 0"
        )
    return record, decode(data)


def read_situation(store: Store, registry: Registry, settings: Settings, effort: Effort) -> Situation:
    """Return the input of a forecast of the latest round.

    Args:
        store: the daemon's, opened to read.
        registry: the installed policies.
        settings: how the cluster behaves.
        effort: the limits of the forecast; only estimates of the jobs that are simulated are made.

    Raises:
        NoRoundError: there is no round to continue from.
        CodecError: the snapshot is another version's.
        UnknownPolicyError: the round's policy is not installed.
        OtherParametersError: the policy refuses the round's parameters.
    """
    record, snapshot = latest_round(store)
    return situation_of(store, record, snapshot, policy_of(registry, record), settings, effort)


def situation_of(  # noqa: PLR0917  the parts of the record that it returns
    store: Store, record: RoundRecord, snapshot: Snapshot, policy: Policy, settings: Settings, effort: Effort
) -> Situation:
    """Return the input of a forecast of a round under a policy."""
    chosen = nearest_jobs(schedulable_jobs(snapshot), effort.jobs)
    return Situation(
        snapshot=replace(snapshot, precomputed=None),
        policy=policy,
        state=store.policy_state(policy.name, record.round - 1),
        apps=store.apps_state(record.round - 1),
        estimates=estimates_of(store, chosen, effort),
        earlier=earlier_jobs(store, snapshot.now),
        settings=settings,
        starts=calibration_of(store, STARTS),
        ends=calibration_of(store, ENDS),
    )


def estimates_of(store: Store, jobs: Sequence[Job], effort: Effort) -> Mapping[str, Estimate]:
    """Return the estimates of the work of live jobs, by uid."""
    return estimate_all(store, jobs, ASSUMED_SECONDS, effort.exponent, most_earlier_jobs=MOST_EARLIER_JOBS)


def calibration_of(store: Store, kind: str) -> Calibration:
    """Return the calibration of starts or ends that the store has; the first one where it has none."""
    found = store.forecast_calibration(kind)
    return Calibration() if found is None else Calibration(*found)


def earlier_jobs(store: Store, now: float) -> EarlierJobs:
    """Return the jobs that have ended lately, and the live ones, as they would be submitted again."""
    ended = store.recent_jobs(MOST_EARLIER_JOBS)
    found = []
    for record in (*ended, *store.live_jobs()):
        try:
            job = past_job(store.path, record, 0.0, None)
        except TraceError:  # a job whose tag could not be read
            continue
        found.append(EarlierJob(job, _seconds(record, now), record.finished is not None))
    if not found:
        return EarlierJobs((), now, now)
    all_known = len(ended) < MOST_EARLIER_JOBS
    oldest = min(one.job.submitted for one in found)
    since = max(now - DAYS * DAY, oldest if all_known else min(record.finished or now for record in ended))
    return EarlierJobs(found, min(since, now), now)


def _seconds(record: JobRecord, now: float) -> float:
    """Return the service of a job so far, in seconds on the GPUs that it asked for."""
    units = int(record.requirements.get("gpus", 0)) or int(record.requirements.get("nodes") or 1)
    return sum(record.attained_at(now).values()) / units
