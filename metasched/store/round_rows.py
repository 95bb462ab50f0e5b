"""Rows of rounds: targets, decisions, policy states and snapshots."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from metasched.core.apps import AppsState
from metasched.core.batching import BatchPlan
from metasched.core.model import Placement, PlannedRun
from metasched.core.policy import PolicyState
from metasched.core.reasons import Reason, from_text, to_text
from metasched.core.reuse import reuses_results
from metasched.store.errors import RoundOrderError
from metasched.store.history_pruning import HistoryPruning
from metasched.store.load_rows import ClusterLoad, LoadRows
from metasched.store.records import RoundRecord
from metasched.store.row_conversion import as_json, batch_plan_of, placement_json, placement_of, record_json

NO_APPS = AppsState()
NO_ENDS: Mapping[str, Reason] = MappingProxyType({})


class RoundRows(LoadRows, HistoryPruning):
    """Reads and writes of rounds: targets, planned runs, decisions, snapshots, states of policies and apps."""

    _reason_texts: Mapping[str, tuple[Reason, str]] = MappingProxyType({})  # of the last round, by uid

    def commit_round(
        self,
        number: int,
        *,
        at: float,
        policy: str,
        parameters: Mapping[str, Any],
        state: PolicyState,
        targets: Mapping[str, Placement],
        reasons: Mapping[str, Reason],
        decide_seconds: float,
        summary: Mapping[str, Any] | None = None,
        co_runners: Mapping[str, str] | None = None,
        time_slicing: Collection[str] = (),
        renewed: Collection[str] = (),
        batches: Mapping[str, BatchPlan] | None = None,
        apps: AppsState = NO_APPS,
        ends: Mapping[str, Reason] = NO_ENDS,
        planned: Mapping[str, PlannedRun] | None = None,
        load: ClusterLoad | None = None,
    ) -> None:
        """Commit one round to the disk: the states of the policy and of the apps, the targets, the ends, the reasons.

        A decision is a row only where a job's target, batch plan or reason changed. A state is a row only where it
        changed, and remains as long as the replay of a snapshot needs it. ``keep_snapshot`` follows.

        Args:
            number: of the round, greater than the last round's.
            at: unix seconds.
            policy: name of the policy.
            parameters: of the policy, JSON-compatible.
            state: of the policy, for the next round.
            targets: the placement of each job that should run, by uid, most important first.
            reasons: for each live job; those that are also in ``targets`` run.
            decide_seconds: duration of the policy's decision.
            summary: of the snapshot, JSON-compatible.
            co_runners: by uid, the co-runner on the same GPUs, for both jobs of each pair.
            time_slicing: uids of the jobs that alternate with their co-runners, one suspended while the other runs.
            renewed: uids of the jobs whose run continues on the same GPUs.
            batches: the batch plan of each target whose trainer should take one up, by uid.
            apps: the apps' state, for the next round.
            ends: why jobs are to end for good, by uid; the first reason of a job remains.
            planned: when a job is to run next, by uid, as far as the policy plans.
            load: of the cluster, for finish-time fairness; None to leave it as it was.

        Raises:
            RoundOrderError: the number is not greater than the last round's.
        """
        with self.transaction(durable=True):
            last = self.last_round()
            if last is not None and number <= last.round:
                raise RoundOrderError(self.path, number, last.round)
            self._write(
                "INSERT INTO rounds (round, at, policy, parameters, decide_seconds, summary) VALUES (?, ?, ?, ?, ?, ?)",
                [number, at, policy, as_json(parameters), decide_seconds, as_json(summary or {})],
            )
            placed = {uid: placement_json(placement) for uid, placement in targets.items()}
            plans = {uid: record_json(batch) for uid, batch in (batches or {}).items()}
            self._commit_targets(placed, co_runners or {}, time_slicing, plans)
            self._commit_planned(planned or {})
            if load is not None:
                self._commit_load(at, load)
            self._write_many(
                "UPDATE runs SET renewals = renewals + 1 WHERE uid = ? AND ended IS NULL AND started IS NOT NULL",
                [(uid,) for uid in renewed],
            )
            texts = self._texts_of(reasons)
            self._commit_decisions(
                number,
                last.round if last else 0,
                {uid: (placed.get(uid), texts.get(uid, ""), plans.get(uid)) for uid in {**reasons, **placed}},
            )
            self._commit_state(number, policy, state)
            self._commit_apps(number, apps)
            self._write_many(
                "UPDATE jobs SET end_reason = ? WHERE uid = ? AND end_reason IS NULL",
                [(to_text(reason), uid) for uid, reason in ends.items()],
            )

    def last_round(self) -> RoundRecord | None:
        """The latest committed round."""
        return next(iter(self.recent_rounds(1)), None)

    def targets(self) -> dict[str, Placement]:
        """The placement of each job that should run, by uid, as the latest round decided, most important first."""
        rows = self._rows("SELECT uid, placement FROM targets ORDER BY rank")
        return {uid: placement for uid, text in rows if (placement := placement_of(text)) is not None}

    def target_batches(self) -> dict[str, BatchPlan]:
        """The batch plans that the latest round decided, by uid."""
        rows = self._rows("SELECT uid, batch FROM targets WHERE batch IS NOT NULL")
        return {uid: batch for uid, text in rows if (batch := batch_plan_of(text)) is not None}

    def planned_runs(self) -> dict[str, PlannedRun]:
        """When jobs are to run next, by uid, as the latest round planned."""
        return {uid: PlannedRun(*run) for uid, *run in self._rows("SELECT uid, begins, seconds FROM planned_runs")}

    def target_co_runners(self) -> tuple[dict[str, str], frozenset[str]]:
        """Co-runners by uid, as the latest round decided, and the uids of jobs that alternate with theirs."""
        rows = self._rows("SELECT uid, co_runner, time_slicing FROM targets WHERE co_runner IS NOT NULL")
        return {uid: other for uid, other, _ in rows}, frozenset(uid for uid, _, alternates in rows if alternates)

    def current_reasons(self) -> dict[str, Reason]:
        """The reason why each live job runs or waits, by uid, as the latest round decided."""
        rows = self._rows("SELECT uid, reason FROM decisions WHERE last_round IS NULL")
        return {uid: from_text(reason) for uid, reason in rows}

    def policy_state(self, policy: str, number: int | None = None) -> PolicyState | None:
        """A policy's latest state, or (for replay) its state after round ``number``; None before its first round."""
        row = self._row(
            "SELECT version, data FROM policy_state WHERE policy = ? AND round <= ? ORDER BY round DESC LIMIT 1",
            [policy, 2**63 - 1 if number is None else number],
        )
        return None if row is None else PolicyState(row[0], json.loads(row[1]))

    def apps_state(self, number: int | None = None) -> AppsState:
        """The latest state of the apps, or (for replay) the one after round ``number``; empty where there is none."""
        row = self._row(
            "SELECT version, data FROM apps WHERE round <= ? ORDER BY round DESC LIMIT 1",
            [2**63 - 1 if number is None else number],
        )
        return NO_APPS if row is None else AppsState(row[0], json.loads(row[1]))

    def completed_by_themselves(self, uids: Collection[str]) -> frozenset[str]:
        """The uids of those jobs that ended as completed, and that the daemon did not end."""
        rows = self._rows(
            "SELECT uid FROM jobs WHERE end_state = 'COMPLETED' AND end_reason IS NULL "
            "AND uid IN (SELECT value FROM json_each(?))",
            [as_json(sorted(uids))],
        )
        return frozenset(uid for (uid,) in rows)

    def snapshot(self, number: int) -> bytes | None:
        """The engine's input in a round, encoded; None where none is stored."""
        row = self._row("SELECT data FROM snapshots WHERE round = ?", [number])
        return None if row is None else bytes(row[0])

    def _commit_targets(
        self,
        placed: Mapping[str, str | None],
        co_runners: Mapping[str, str],
        time_slicing: Collection[str],
        batches: Mapping[str, str | None],
    ) -> None:
        self._write("DELETE FROM targets")
        self._write_many(
            "INSERT INTO targets (rank, uid, placement, co_runner, time_slicing, batch) VALUES (?, ?, ?, ?, ?, ?)",
            [
                (rank, uid, text, co_runners.get(uid), int(uid in time_slicing), batches.get(uid))
                for rank, (uid, text) in enumerate(placed.items())
            ],
        )

    def _commit_planned(self, planned: Mapping[str, PlannedRun]) -> None:
        self._write("DELETE FROM planned_runs")
        self._write_many(
            "INSERT INTO planned_runs (uid, begins, seconds) VALUES (?, ?, ?)",
            [(uid, run.begins, run.seconds) for uid, run in planned.items()],
        )

    def _texts_of(self, reasons: Mapping[str, Reason]) -> Mapping[str, str]:
        """Return the reasons as texts, by uid; the text of the same object as in the last round is not made again."""
        known = self._reason_texts if reuses_results() else {}
        self._reason_texts = {
            uid: found if (found := known.get(uid)) is not None and found[0] is reason else (reason, to_text(reason))
            for uid, reason in reasons.items()
        }
        return {uid: text for uid, (_, text) in self._reason_texts.items()}

    def _commit_decisions(
        self, number: int, last: int, decisions: Mapping[str, tuple[str | None, str, str | None]]
    ) -> None:
        rows = self._rows("SELECT uid, granted, reason, batch FROM decisions WHERE last_round IS NULL")
        held = {uid: (granted, reason, batch) for uid, granted, reason, batch in rows}
        changed = [uid for uid, decision in decisions.items() if held.get(uid) != decision]
        self._write_many(
            "UPDATE decisions SET last_round = ? WHERE uid = ? AND last_round IS NULL",
            [(last, uid) for uid, decision in held.items() if decisions.get(uid) != decision],
        )
        self._write_many(
            "INSERT INTO decisions (uid, first_round, granted, reason, batch) VALUES (?, ?, ?, ?, ?)",
            [(uid, number, *decisions[uid]) for uid in changed],
        )

    def _commit_state(self, number: int, policy: str, state: PolicyState) -> None:
        """Insert a state that differs from the last round's."""
        data = as_json(state.data)
        latest = self._row(
            "SELECT version, data FROM policy_state WHERE policy = ? ORDER BY round DESC LIMIT 1", [policy]
        )
        if latest != (state.version, data):
            self._write(
                "INSERT INTO policy_state (policy, round, version, data) VALUES (?, ?, ?, ?)",
                [policy, number, state.version, data],
            )

    def _commit_apps(self, number: int, state: AppsState) -> None:
        """Insert a state of the apps that differs from the last round's."""
        data = as_json(state.data)
        latest = self._row("SELECT version, data FROM apps ORDER BY round DESC LIMIT 1")
        if latest != (state.version, data) and not (latest is None and not state.data):
            self._write("INSERT INTO apps (round, version, data) VALUES (?, ?, ?)", [number, state.version, data])
