"""Replay: recorded rounds of the daemon, decided again from their stored snapshots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pydantic import ValidationError

from metasched.core.batching import BatchPlan
from metasched.core.errors import MetaschedError
from metasched.core.model import Placement
from metasched.core.policy import Policy, PolicyParameters, Registry
from metasched.core.reasons import Reason
from metasched.core.validation_messages import explain
from metasched.replay.snapshot_codec import decode
from metasched.scheduling.engine import RoundResult, run_round
from metasched.store import RoundRecord, Store


class OtherParametersError(MetaschedError):
    """A policy refuses the parameters of a recorded round."""

    def __init__(self, record: RoundRecord, why: str) -> None:
        super().__init__(f"round {record.round} was decided under parameters that {record.policy!r} refuses now: {why}")


class NoSnapshotError(MetaschedError):
    """None of the requested rounds has a stored snapshot."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One job whose recorded and replayed decisions differ; no placement stands for a job that waits.

    Attributes:
        uid: the job.
        stored: the placement that the daemon decided.
        replayed: the placement that the replay decides.
        stored_batch: the batch plan that the daemon decided; None where the batch was left as it was.
        replayed_batch: the same of the replay.
        reason: the replay's reason; None where it has none for the job.
    """

    uid: str
    stored: Placement | None
    replayed: Placement | None
    stored_batch: BatchPlan | None
    replayed_batch: BatchPlan | None
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """One replayed round.

    Attributes:
        record: the recorded round.
        jobs: number of jobs with a recorded decision.
        differences: the jobs whose decisions differ.
    """

    record: RoundRecord
    jobs: int
    differences: tuple[Difference, ...]


def replay(store: Store, registry: Registry, limit: int, other: Policy | None = None) -> Iterator[Replayed]:
    """Decide the latest rounds again, in the order of their numbers, each from its stored snapshot.

    Args:
        store: the daemon's store, or a copy.
        registry: the installed policies.
        limit: the most rounds to replay.
        other: a policy to decide instead of the recorded one; its state passes from round to round, and that of
            the apps does, too.

    Raises:
        NoSnapshotError: none of these rounds has a stored snapshot.
        UnknownPolicyError: a round's policy is not installed.
        OtherParametersError: a round's policy refuses its recorded parameters.
        CodecError: a snapshot cannot be read.
    """
    recorded = [(record, data) for record in store.recent_rounds(limit) if (data := store.snapshot(record.round))]
    if not recorded:
        raise NoSnapshotError(f"{store.path}: no snapshot of these rounds is kept; see [history] snapshots_bytes")
    carried, carried_apps = None, store.apps_state(recorded[-1][0].round - 1)
    for record, data in reversed(recorded):
        snapshot = decode(data)
        if other is None:
            policy = policy_of(registry, record)
            state = store.policy_state(record.policy, record.round - 1)
            apps = store.apps_state(record.round - 1)
        else:
            policy, state, apps = other, carried, carried_apps
            snapshot = replace(snapshot, precomputed=None)  # it was computed for the recorded policy
        result = run_round(snapshot, policy, state, apps)
        carried, carried_apps = result.state, result.apps
        stored = {d.uid: (d.granted, d.batch) for d in store.decisions_of(record.round)}
        yield Replayed(record, len(stored), _differences(stored, result))


def policy_of(registry: Registry, record: RoundRecord) -> Policy:
    """The policy of a recorded round, with its recorded parameters.

    Raises:
        UnknownPolicyError: the policy is not installed.
        OtherParametersError: the policy refuses the parameters.
    """
    kind = registry.get(record.policy)
    return kind(_parameters(kind, record))


def _parameters(policy: type[Policy], record: RoundRecord) -> PolicyParameters:
    try:
        # In strict mode, only JSON input may have lists for the tuples and sets of the parameters.
        return policy.Parameters.model_validate_json(json.dumps(dict(record.parameters)))
    except ValidationError as error:
        raise OtherParametersError(record, "; ".join(explain(error, policy.Parameters))) from None


def _differences(
    stored: Mapping[str, tuple[Placement | None, BatchPlan | None]], result: RoundResult
) -> tuple[Difference, ...]:
    found = []
    for uid in sorted(stored.keys() | result.reasons.keys()):
        before, now = stored.get(uid, (None, None)), (result.targets.get(uid), result.batches.get(uid))
        if before != now:
            found.append(Difference(uid, before[0], now[0], before[1], now[1], result.reasons.get(uid)))
    return tuple(found)
