"""The state of apps between rounds, as typed records; its stored form is JSON-compatible (``AppsState``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import msgspec

from metasched.apps.membership import is_trial
from metasched.core.apps import AppsState
from metasched.core.model import Job
from metasched.core.reasons import Reason, from_json, to_json

VERSION = 1


@dataclass(frozen=True)
class TrialRecord:
    """One trial, live or gone.

    Attributes:
        submitted: its submission, unix seconds.
        attained: GPU-seconds that it has received.
    """

    submitted: float
    attained: float


@dataclass(frozen=True)
class AppRecord:
    """One app with a live member.

    Attributes:
        first_submitted: first submission of a member, unix seconds.
        trials: all trials that there were, by uid.
        others: GPU-seconds of the live members that are no trials and have received any, by uid.
        gone_service: GPU-seconds of the members that are gone and were no trials. They are not listed, because an array
            may have many tasks.
        ended: the reasons of the ended trials, by uid, as JSON.
        tuner: the tuner's state.
    """

    first_submitted: float
    trials: dict[str, TrialRecord] = field(default_factory=dict)
    others: dict[str, float] = field(default_factory=dict)
    gone_service: float = 0.0
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    tuner: dict[str, Any] = field(default_factory=dict)

    def with_members(self, members: Sequence[Job]) -> Self:
        """The record with the live members of a round, given in order of submission."""
        known = dict(self.trials)
        for job in members:
            if is_trial(job) or job.uid in known:
                known[job.uid] = TrialRecord(job.submitted, job.attained_service)
        live = {job.uid for job in members}
        gone = sum(attained for uid, attained in self.others.items() if uid not in live)
        others = {job.uid: job.attained_service for job in members if job.uid not in known and job.attained_service}
        first = min(self.first_submitted, members[0].submitted)
        return replace(self, first_submitted=first, trials=known, others=others, gone_service=self.gone_service + gone)

    @property
    def entrants(self) -> list[str]:
        """The uids of all trials, in order of submission."""
        return sorted(self.trials, key=lambda uid: (self.trials[uid].submitted, uid))

    @property
    def attained_service(self) -> float:
        """GPU-seconds that all members have received."""
        return sum(trial.attained for trial in self.trials.values()) + sum(self.others.values()) + self.gone_service

    @property
    def reasons(self) -> Mapping[str, Reason]:
        """Why each ended trial was ended, by uid."""
        return {uid: from_json(reason) for uid, reason in self.ended.items()}


@dataclass(frozen=True)
class Records:
    """What apps are known by between rounds.

    Attributes:
        now: the latest round, unix seconds.
        live: steps of the number of live apps of the cluster (``LiveApps``).
        apps: the apps with live members, by uid; no apps of one, for which their jobs tell all.
    """

    now: float = 0.0
    live: tuple[tuple[float, float], ...] = ()
    apps: dict[str, AppRecord] = field(default_factory=dict)


def read(state: AppsState) -> Records:
    """The records of a stored state; none of another version's."""
    return msgspec.convert(state.data, Records) if state.data and state.version == VERSION else Records()


def write(records: Records) -> AppsState:
    """The records as the state to store, whose data is JSON-compatible."""
    data = msgspec.to_builtins(records)
    return AppsState(VERSION, data | {"live": [list(step) for step in records.live]})


def trials_of(state: AppsState) -> frozenset[str]:
    """The uids of all trials that live apps have had, those that are gone included."""
    return frozenset(uid for record in read(state).apps.values() for uid in record.trials)


def ended(reasons: Mapping[str, Reason]) -> dict[str, dict[str, Any]]:
    """The reasons of ended trials as ``AppRecord.ended`` has them."""
    return {uid: to_json(reason) for uid, reason in reasons.items()}
