"""Rounds that the daemon has decided, decided again from what the store kept of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pydantic import ValidationError

from metasched.core.errors import MetaschedError
from metasched.core.model import Placement
from metasched.core.policy import Policy, PolicyParameters, Registry
from metasched.core.reasons import Reason
from metasched.core.validation_errors import explain
from metasched.replay.snapshot_codec import decode
from metasched.scheduling.engine import run_round
from metasched.store import RoundRecord, Store


class OtherParametersError(MetaschedError):
    """A policy does not take parameters any more that it once decided under."""

    def __init__(self, record: RoundRecord, why: str) -> None:
        super().__init__(f"round {record.round} was decided under parameters that {record.policy!r} refuses now: {why}")


class NoSnapshotError(MetaschedError):
    """The rounds asked for cannot be replayed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One job about which the two decisions differ; None for a job that waits.

    Attributes:
        uid: the job.
        stored: where the daemon wanted it.
        replayed: where the replay wants it.
        reason: the replay's; None where it says nothing of the job.
    """

    uid: str
    stored: Placement | None
    replayed: Placement | None
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """One round, decided again.

    Attributes:
        record: what the store says of the round.
        jobs: that it decided about.
        differences: empty where both decisions are the same.
    """

    record: RoundRecord
    jobs: int
    differences: tuple[Difference, ...]


def replay(store: Store, registry: Registry, limit: int, other: Policy | None = None) -> Iterator[Replayed]:
    """Decide the latest rounds again, the first one first, each from the snapshot that was kept of it.

    Args:
        store: the daemon's, or a copy.
        registry: where its policies are found.
        limit: how many rounds at most.
        other: a policy to decide in place of the one that did; it carries its own state from round to round.

    Raises:
        NoSnapshotError: no snapshot is kept of any of these rounds.
        UnknownPolicyError: a round's policy is not installed.
        OtherParametersError: a round's policy does not take its parameters any more.
        CodecError: a snapshot cannot be read.
    """
    kept = [(record, data) for record in store.recent_rounds(limit) if (data := store.snapshot(record.round))]
    if not kept:
        raise NoSnapshotError(f"{store.path}: no snapshot of these rounds is kept; see [history] snapshots_bytes")
    carried = None
    for record, data in reversed(kept):
        snapshot = decode(data)
        if other is None:
            found = registry.get(record.policy)
            policy = found(_parameters(found, record))
            state = store.policy_state(record.policy, record.round - 1)
        else:
            policy, state, snapshot = other, carried, replace(snapshot, precomputed=None)  # that was another's work
        result = run_round(snapshot, policy, state)
        carried = result.state
        stored = {d.uid: d.granted for d in store.decisions_of(record.round)}
        yield Replayed(record, len(stored), _differences(stored, result.targets, result.reasons))


def _parameters(policy: type[Policy], record: RoundRecord) -> PolicyParameters:
    try:
        # As JSON, which is how they are kept: lists in it may be tuples and sets.
        return policy.Parameters.model_validate_json(json.dumps(dict(record.parameters)))
    except ValidationError as error:
        raise OtherParametersError(record, "; ".join(explain(error, policy.Parameters))) from None


def _differences(
    stored: Mapping[str, Placement | None], targets: Mapping[str, Placement], reasons: Mapping[str, Reason]
) -> tuple[Difference, ...]:
    uids = sorted(stored.keys() | reasons.keys())
    pairs = ((uid, stored.get(uid), targets.get(uid)) for uid in uids)
    return tuple(Difference(uid, was, now, reasons.get(uid)) for uid, was, now in pairs if was != now)
