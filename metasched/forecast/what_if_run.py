"""The process of a what-if that was asked for on the web page: ``python -m metasched.forecast.what_if_run TASK``.

The process opens the daemon's database to read, simulates the live jobs from the snapshot of the latest round, and
writes one file. It has the lowest priority and bounded memory and CPU time, and ends with the process that started it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from metasched.core.errors import MetaschedError
from metasched.core.policy import Policy, installed_policies
from metasched.core.policy_text import parse_policy
from metasched.forecast.queue_forecast import Effort
from metasched.forecast.round_follower import LOWEST_PRIORITY
from metasched.forecast.situation import read_situation
from metasched.forecast.what_if_result import WhatIfJob, WhatIfPolicy, WhatIfResult, WhatIfTask, write_result
from metasched.simulator.records import Settings
from metasched.simulator.what_if import Forecast, forecast, schedulable_jobs
from metasched.store import Store

MOST_CPU_SECONDS = 600
"""CPU seconds after which the kernel ends the process."""
MEMORY_BYTES = 1 << 30
LIVE = "{} (now)"
"""Label of the latest round's policy."""


def end_with_standard_input() -> None:
    """End this process once its standard input is closed: the process that started it has ended, or was killed."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, name="end with parent", daemon=True).start()


def what_if(task: WhatIfTask) -> WhatIfResult:
    """Simulate the live jobs under the latest round's policy and under those of the task.

    Raises:
        MetaschedError: there is no round to continue from, or a policy cannot be used.
    """
    registry = installed_policies()
    chosen = {text: parse_policy(text, registry) for text in task.policies}
    with Store.open(Path(task.database), read_only=True) as store:
        live = read_situation(store, registry, Settings(**task.settings), Effort(jobs=task.jobs))
        before = live.snapshot.round - 1
        states = {text: store.policy_state(policy.name, before) for text, policy in chosen.items()}
    now = LIVE.format(live.policy.name)
    compared: Mapping[str, Policy] = {now: live.policy, **chosen}
    rows = forecast(
        live.snapshot,
        live.estimates,
        compared,
        live.settings,
        {now: live.state, **states},
        live.apps,
    )
    return WhatIfResult(
        asked_by=task.asked_by,
        asked=task.policies,
        started=task.started,
        ended=time.time(),
        round=live.snapshot.round,
        at=live.snapshot.now,
        policies=tuple(_summary(name, rows) for name in compared),
        jobs=tuple(_job(row) for row in sorted(rows, key=lambda row: _order(row, now))),
        left_out=len(schedulable_jobs(live.snapshot)) - len(rows),
    )


def _order(row: Forecast, policy: str) -> tuple[bool, float, str]:
    end = row.ends[policy]
    return end is None, end or 0.0, row.job.uid


def _job(row: Forecast) -> WhatIfJob:
    return WhatIfJob(row.job.uid, row.how, dict(row.ends), dict(row.preemptions))


def _summary(policy: str, rows: Sequence[Forecast]) -> WhatIfPolicy:
    ends = [(row.job.submitted, end) for row in rows if (end := row.ends[policy]) is not None]
    lost = sum(policy in row.ended for row in rows)
    return WhatIfPolicy(
        name=policy,
        mean_jct=fmean(end - submitted for submitted, end in ends) if ends else None,
        last_end=max((end for _, end in ends), default=None),
        preemptions=sum(row.preemptions[policy] for row in rows),
        completed=len(ends),
        ended_by_tuner=lost,
        never=len(rows) - len(ends) - lost,
    )


def main(argument: str) -> int:
    """Do a task, given as JSON, and write its result or its problem; returns the exit code."""
    given = json.loads(argument)
    task = WhatIfTask(**given | {"policies": tuple(given["policies"])})
    os.nice(LOWEST_PRIORITY)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_SECONDS, MOST_CPU_SECONDS + 10))
    end_with_standard_input()
    result = WhatIfResult(task.asked_by, task.policies, task.started, task.started)
    try:
        result = what_if(task)
    except MetaschedError as error:
        result = replace(result, ended=time.time(), problem=str(error))
    except MemoryError:
        result = replace(result, ended=time.time(), problem=f"it needs more than {MEMORY_BYTES >> 20} MiB of memory")
    write_result(Path(task.result), result)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
