"""A what-if that was asked for on the web page: what is to be simulated, and the file that keeps the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from metasched.core.file_replacement import replace_file
from metasched.forecast.result_file import decode


@dataclass(frozen=True, slots=True)
class WhatIfTask:
    """What the process of a what-if is to do.

    Attributes:
        database: path of the daemon's database.
        result: path of the file of the result.
        policies: the policies to compare with that of the latest round, as ``NAME`` or ``NAME:KEY=VALUE,...``.
        asked_by: the user who asks.
        started: unix seconds.
        settings: how the cluster behaves in simulations: arguments of ``metasched.simulator.records.Settings``.
        jobs: most live jobs that are simulated, those nearest to their start.
    """

    database: str
    result: str
    policies: tuple[str, ...]
    asked_by: str
    started: float
    settings: Mapping[str, Any]
    jobs: int


@dataclass(frozen=True, slots=True)
class WhatIfPolicy:
    """One policy of a what-if.

    Attributes:
        name: the policy, as it was asked for.
        mean_jct: mean job completion time of the jobs that complete, from submission, seconds; None where none does.
        last_end: completion of the last job, unix seconds; likewise.
        preemptions: stops of all jobs from the round on.
        completed: jobs that complete.
        ended_by_tuner: jobs that the tuner of their app ends.
        never: jobs that do neither.
    """

    name: str
    mean_jct: float | None
    last_end: float | None
    preemptions: int
    completed: int
    ended_by_tuner: int
    never: int


@dataclass(frozen=True, slots=True)
class WhatIfJob:
    """One live job of a what-if; instants are unix seconds.

    Attributes:
        uid: the job.
        work_from: the source of the estimate of its work, in words.
        ends: its completion by policy; None where it does not complete.
        preemptions: its stops by policy.
    """

    uid: str
    work_from: str
    ends: Mapping[str, float | None]
    preemptions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """The result of a what-if.

    Attributes:
        asked_by: the user who asked for it.
        asked: the policies that were asked for.
        started: unix seconds, as is ``ended``.
        ended: when the process ended.
        round: the round from which the simulations began; None where none was read.
        at: the instant of that round; likewise.
        policies: the policy of that round first, then those that were asked for.
        jobs: the live jobs, those that end first under the round's policy first.
        left_out: live jobs that were not simulated.
        problem: why there is no result, in words; "" for no problem.
    """

    asked_by: str
    asked: tuple[str, ...]
    started: float
    ended: float
    round: int | None = None
    at: float | None = None
    policies: tuple[WhatIfPolicy, ...] = ()
    jobs: tuple[WhatIfJob, ...] = field(default=())
    left_out: int = 0
    problem: str = ""


def write_result(path: Path, result: WhatIfResult) -> None:
    """Write a result atomically; raises OSError."""
    replace_file(path, msgspec.json.encode(result))


def read_result(path: Path) -> WhatIfResult:
    """Read a result.

    Raises:
        ResultError: the file is something else.
        OSError: the file cannot be read.
    """
    return decode(path.read_bytes(), WhatIfResult, path.name)
