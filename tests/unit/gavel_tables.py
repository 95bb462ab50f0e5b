"""Small tables of speeds, and jobs that know theirs, for the tests of what builds on them."""

from __future__ import annotations

import json

from metasched.core.model import Node
from metasched.simulator.records import Submission, Workload
from metasched.throughput.throughput_table import TableTraining, ThroughputTable
from tests.builders import job

ROWS = {
    "v100": {
        ("quick", 1): (10.0, {("quick", 1): (6.0, 6.0), ("steady", 1): (8.0, 3.0)}),
        ("quick", 2): (16.0, {}),
        ("steady", 1): (4.0, {("quick", 1): (3.0, 8.0), ("steady", 1): (0.0, 0.0)}),
        ("steady", 2): (8.0, {}),
    },
    "k80": {
        ("quick", 1): (1.0, {("quick", 1): (0.5, 0.5), ("steady", 1): (0.75, 1.5)}),
        ("quick", 2): (2.0, {}),
        ("steady", 1): (2.0, {("quick", 1): (1.5, 0.75), ("steady", 1): (0.0, 0.0)}),
        ("steady", 2): (0.0, {}),
    },
    "v100_unconsolidated": {("quick", 2): (12.0, {})},
}


def table_json(rows=None):
    """A table as its file has it."""
    return {
        sheet: {
            str(kind): {"null": alone, **{str(other): list(pair) for other, pair in colocated.items()}}
            for kind, (alone, colocated) in kinds.items()
        }
        for sheet, kinds in (rows or ROWS).items()
    }


def write_table(path, rows=None):
    """The table in a file."""
    path.write_text(json.dumps(table_json(rows)))
    return path


def small_table(**more):
    """The table."""
    alone = {sheet: {kind: cells[0] for kind, cells in kinds.items()} for sheet, kinds in ROWS.items()}
    colocated = {
        sheet: {kind: {other: pair[0] for other, pair in cells[1].items()} for kind, cells in kinds.items()}
        for sheet, kinds in ROWS.items()
    }
    return ThroughputTable(alone, colocated, **more)


def cluster(**gpus):
    """One node for each type."""
    return tuple(Node(kind, kind, count, 0, 0) for kind, count in gpus.items())


def known_job(uid, model="quick", gpus=1, *, table=None, submitted=0.0, **more):
    """A job without CPUs, whose speed is known if a table is given."""
    speed = None if table is None else TableTraining(table, model, 1.0).known(0.0)
    one = job(uid, gpus, name=model, submitted=submitted, cpus_per_unit=0)
    return one.evolve(speed=speed, **more)


def workload(table, *jobs):
    """Jobs as (uid, model, gpus, steps, arrival)."""
    made = (
        Submission(known_job(uid, model, gpus, submitted=at), TableTraining(table, model, steps))
        for uid, model, gpus, steps, at in jobs
    )
    return Workload("test", tuple(made))
