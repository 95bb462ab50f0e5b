"""Records of the database as rich tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from metasched.cli.tables import NAME_WIDTH, row, table
from metasched.core.reason_words import counted, words
from metasched.core.reasons import from_text
from metasched.presentation.formatting import clean, clock, duration, where
from metasched.store import ActionRecord, DecisionRecord, EventRecord, JobEventRecord, RunRecord


def runs_table(runs: Sequence[RunRecord], now: float) -> Table:
    """Return the table of the runs of one job, the first run first."""
    numbers = ("RUN", "RAN", "RENEWED", "INIT")
    made = table("RUN", "STARTED", "RAN", "WHERE", "RENEWED", "ENDED", "INIT", title="Runs", right=numbers)
    for run in runs:
        held = run.placement or run.released
        place = "" if held is None else where(dict(held.node_gpus))
        ended = "not yet" if run.ended is None else run.cause
        ran = None if run.started is None else duration(run.seconds_at(now))
        init = None if run.init_seconds is None else f"{run.init_seconds:.1f} s"
        started = "not yet" if run.started is None else clock(run.started)
        row(made, run.run, started, ran, place, counted(run.renewals, "round"), ended, init)
    return made


def decisions_table(decisions: Sequence[DecisionRecord]) -> Table:
    """Return the table of the decisions on one job."""
    made = table("ROUNDS", "GRANTED", "REASON", title="Latest decisions")
    for decision in decisions:
        last = "now" if decision.last_round is None else decision.last_round
        rounds = str(last) if decision.first_round == last else f"{decision.first_round}-{last}"
        granted = decision.granted
        row(
            made,
            rounds,
            "waits" if granted is None else f"{granted.gpus} on {' '.join(granted.nodes)}",
            words(decision.reason),
        )
    return made


def actions_table(actions: Sequence[ActionRecord]) -> Table:
    """Return the table of the actions on one job."""
    made = table("AT", "ACTION", "OUTCOME", "TOOK", title="Latest actions", right=("TOOK",))
    for action in actions:
        took = None if action.latency_seconds is None else f"{1000 * action.latency_seconds:.0f} ms"
        row(made, clock(action.at), action.kind, action.outcome or "not known", took)
    return made


def events_table(events: Sequence[EventRecord]) -> Table:
    """Return the table of one job's events."""
    made = table("AT", "EVENT", "", title="Latest events")
    for event in events:
        row(made, clock(event.at), event.kind, words(from_text(event.text)))
    return made


def job_events_table(found: Sequence[JobEventRecord]) -> Table:
    """Return the table of events of jobs and of the cluster."""
    made = table("AT", "JOB", "NAME", "USER", "EVENT", "")
    made.columns[0].no_wrap = True
    for one in found:
        text = words(from_text(one.event.text))
        names = (clean(name or "", NAME_WIDTH) for name in (one.name, one.user))
        row(made, clock(one.event.at), one.slurm_job_id, *names, one.event.kind, text)
    return made
