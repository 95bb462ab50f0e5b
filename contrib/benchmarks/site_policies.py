"""What the generated site's page Policies shows: shadow policies, a what-if, a comparison; and forecasts of a job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from metasched.forecast.what_if_result import WhatIfJob, WhatIfPolicy, WhatIfResult, write_result
from metasched.store import ForecastRecord, ShadowRecord, Store

STATE, COMPARISONS = "web", "comparisons"
"""Directories of the web page's own files, and of results of `metasched compare`, below the site's directory."""
_ROUNDS = 60
_POLICIES = ("themis", "pollux:p=-1", "fifo")
_HOUR = 3600.0


def fill_policies(store: Store, uids: Sequence[str], rounds: int, round_seconds: float, now: float) -> None:
    """Insert the latest rounds of three shadow policies, one of which fails, and forecasts of the first job."""
    records = []
    for index in range(min(_ROUNDS, rounds)):
        number = rounds - index
        wave = math.sin(index / 7)
        for place, policy in enumerate(_POLICIES):
            records.append(
                ShadowRecord(
                    number,
                    now - 20 - index * round_seconds,
                    policy,
                    "las",
                    gpus=16 + 8 * place + index % 5,
                    would_run=tuple(uids[-3 - place :]),
                    would_not_run=tuple(uids[1 : 4 + place]),
                    jct=(9 + place + wave) * _HOUR,
                    worst_rho=1.3 + 0.2 * place + 0.1 * wave,
                    live_jct=(10.5 + 0.5 * wave) * _HOUR,
                    live_worst_rho=1.6 + 0.2 * wave,
                    seconds=0.4,
                )
            )
    records.append(ShadowRecord(rounds, now - 20, "pollux:p=-1", "las", error="ValueError: no speed of node type h100"))
    store.commit_shadows(records)
    begin = now - 36_000
    store.commit_forecasts(
        [
            ForecastRecord(uids[0], "start", rounds - 120, begin - 600, begin - 300, begin + 60, begin + 900),
            ForecastRecord(uids[0], "end", rounds - 120, begin - 600, now + 2000, now + 9000, now + 30_000),
            ForecastRecord(uids[0], "end", rounds, now - 20, now + 5000, now + 7000, now + 9000),
        ]
    )
    store.resolve_forecasts()


def write_policies(base: Path, uids: Sequence[str], rounds: int, now: float) -> None:
    """Write the files of two what-ifs, one of which crashed, and of a comparison."""
    (base / STATE).mkdir(exist_ok=True)
    asked = ("themis", "pollux:p=-1")
    names = ("las (now)", *asked)
    jobs = tuple(
        WhatIfJob(
            uid,
            ("its own reports", "3 earlier jobs of this name", "assumed")[index % 3],
            {
                name: None if index % 29 == place + 9 else now + (index + 1) * 700.0 * (1 + 0.1 * place)
                for place, name in enumerate(names)
            },
            {name: (index + place) % 3 for place, name in enumerate(names)},
        )
        for index, uid in enumerate(uids[:120])
    )
    policies = tuple(
        WhatIfPolicy(name, (9.0 + place) * _HOUR, now + 90_000.0 + 5000 * place, 40 + 7 * place, len(jobs), 3, place)
        for place, name in enumerate(names)
    )
    crash = "Its process crashed by signal 11."
    write_result(base / STATE / "what-if-1.json", WhatIfResult("ops", ("slaq",), now - 900, now - 870, problem=crash))
    found = WhatIfResult("ops", asked, now - 300, now - 262, rounds, now - 320, policies, jobs, left_out=12)
    write_result(base / STATE / "what-if-2.json", found)
    (base / COMPARISONS / "january").mkdir(parents=True, exist_ok=True)
    rows = ["policy,load,seed,jct_mean,jct_p99,makespan,utilization,rho_worst_pollux,preemptions_mean"]
    for place, policy in enumerate(("fifo", "las", "themis", "pollux(p=-1)")):
        for load in (1.0, 2.0):
            rows += [
                f"{policy},{load},{seed},{(12 - 2 * place + seed) * load * 3600},{(60 - 9 * place) * 3600 * load},"
                f"{200_000 + 9000 * place},{0.71 + 0.04 * place},{2.4 - 0.3 * place},{place * 1.5}"
                for seed in range(3)
            ]
    (base / COMPARISONS / "january" / "summary.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
