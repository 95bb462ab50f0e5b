"""Who sees what of a job on every page, JSON path and published file, as observed; prints the table of THREATS.md.

    python -m tests.unit.web.who_sees_what

A daemon on a fake Slurm publishes the jobs of two users; the web page and the files are then read as each viewer. Files
are read as Unix users, for which the command must be root.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import structlog
from starlette.routing import Route
from starlette.testclient import TestClient

from metasched.configuration.config import Access
from metasched.core.reasons import Code, Reason, to_text
from metasched.forecast.what_if_result import WhatIfJob, WhatIfPolicy, WhatIfResult, write_result
from metasched.store import ShadowRecord
from metasched.web.application import create_application
from metasched.web.settings import WebSettings
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite

HEADER = "X-Remote-User"
VIEWERS = {"owner": "nobody", "another user": "daemon", "coordinator": "games", "admin": "sys", "nobody named": None}
"""Names of Unix users by column. The coordinator coordinates the account of the owner's jobs."""
WHOLE, NAMES, NOTHING, NO = "whole", "names", "no names", "no"
JOB_ID, ENDED_ID, STRANGERS_ID = 77_001, 77_003, 77_005
HEXADECIMAL = re.compile(r"(?<![0-9A-Za-z])(?=[0-9]*[a-f])[0-9a-f]{8,}(?![0-9A-Za-z])")
"""A long hexadecimal number, such as the uid of a job, which holds any digits by chance."""
WHOLE_NUMBER = r"(?<![0-9.])(?:{})(?![0-9])"
"""Format of a pattern that finds whole decimal numbers. Times and shares hold the same digits by chance."""
MEASURES = re.compile(WHOLE_NUMBER.format(r"0\.7171|24321|98765"))
"""Loss, progress and total steps of the owner's jobs."""
VARIANTS = {
    "/timeline": ("", "?by=jobs&span=7d"),
    "/fairness": ("", "?by=job", "?by=account"),
    "/replay": ("", *(f"?round={number}" for number in range(1, 12))),
}
"""Queries with which a page shows all that it has."""
FILES = (
    *("status.json", "status-jobs.json", "private/", "private/all.json", "private/<number>.json", "metrics.prom"),
    *("mailbox/", "mailbox/address/", "mailbox/<uid>/lease.json", "reports/"),
)
"""Published files and directories, with the owner's <number> and a job's <uid>. Of a directory, its listing is read."""


class Observed:
    """A site with jobs of two users, and what each viewer finds there."""

    def __init__(self, base: Path, *, private: bool) -> None:
        self.site = FakeSite(base, FakeSlurm(now=time.time() - 900), policy="fifo")
        self.shared = base / "shared"
        access = Access(admins=(VIEWERS["admin"],))
        self.site.controller.reconfigure(
            self.site.config.model_copy(update={"access": access}), self.site.controller.policy
        )
        slurm = self.site.slurm
        if private:
            values = {**slurm._settings.values, "PrivateData": "jobs,usage"}
            slurm._settings = replace(slurm._settings, values=values)
        self._submit()
        self._measure()
        self.site.run(80)
        self.uid = self.record(JOB_ID).uid
        self.app = next(iter(self.site.status().apps)).uid
        settings = WebSettings(
            self.shared,
            base / "state" / "metasched.db",
            trusts_header=True,
            admins=access.admins,
            coordinators={"vision": (VIEWERS["coordinator"],)},
            state=base / "web",
        )
        self._think_ahead(base / "web")
        self.application = create_application(settings)
        self.strangers_uid = self.record(STRANGERS_ID).uid
        self._job_ids = re.compile(WHOLE_NUMBER.format(f"{JOB_ID}|{ENDED_ID}"))
        self._names = re.compile(f"ownersjob|ownersapp|{self.uid}|{self.record(ENDED_ID).uid}")

    def record(self, number: int):
        """The record of a job by its Slurm job id."""
        return self.site.record(str(number))

    def close(self) -> None:
        """Close the site's database."""
        self.site.close()

    def routes(self) -> list[tuple[str, str]]:
        """Method and path of every page, fragment and JSON path."""
        return [
            (method, route.path)
            for route in self.application.routes
            if isinstance(route, Route)
            for method in sorted((route.methods or set()) - {"HEAD"})
        ]

    def of_route(self, method: str, path: str, viewer: str) -> str:
        """What a viewer finds at a path, with every variant of its query, as a page and as a fragment."""
        uid = self.app if path.startswith(("/app/", "/api/v1/app/")) else self.uid
        found = set()
        with TestClient(self.application, raise_server_exceptions=False) as client:
            if VIEWERS[viewer] is not None:
                client.headers[HEADER] = VIEWERS[viewer]
            for query in VARIANTS.get(path.removeprefix("/api/v1"), ("",)):
                for headers in ({}, {"HX-Request": "true"}):
                    address = re.sub(r"\{uid(:path)?\}", uid, path) + query
                    answer = client.request(method, address, headers=headers)
                    found.add(self.level(answer.text) if answer.is_success else str(answer.status_code))
        return max(found, key=[NOTHING, "403", "404", "405", "503", NAMES, WHOLE].index)

    def of_file(self, name: str, viewer: str) -> str:
        """What a Unix user finds in a published file or in the listing of a directory."""
        number = pwd.getpwnam(VIEWERS["owner"]).pw_uid
        path = self.shared / name.replace("<number>", str(number)).replace("<uid>", self.uid)
        with _user(pwd.getpwnam(VIEWERS[viewer]).pw_uid):
            try:
                text = " ".join(os.listdir(path)) if name.endswith("/") else path.read_text()  # noqa: PTH208  names
            except PermissionError:
                return NO
        return self.level(text)

    def level(self, text: str) -> str:
        """What a text tells of the owner's jobs."""
        without_hexadecimals = HEXADECIMAL.sub("", text)
        if MEASURES.search(without_hexadecimals):
            return WHOLE
        return NAMES if self._names.search(text) or self._job_ids.search(without_hexadecimals) else NOTHING

    def _submit(self) -> None:
        """Submit the owner's jobs, one of which has ended as an app's worse trial, and a stranger's behind them."""
        slurm, owner = self.site.slurm, VIEWERS["owner"]
        slurm._next_id = JOB_ID
        for number, gpus in enumerate((4, 1, 1, 16)):
            tag = "metasched app=ownersapp" if number < 3 else "metasched"
            slurm.add(
                "--hold", f"--gres=gpu:{min(gpus, 4)}", *(["--nodes=4"] if gpus > 4 else []), "--time=60",
                comment=tag, user=owner, account="vision", name="ownersjob",
            )  # fmt: skip
        assert slurm._next_id == STRANGERS_ID
        slurm.add(
            "--hold", "--gres=gpu:4", "--nodes=4", "--time=60",
            comment="metasched", user=VIEWERS["another user"], account="text", name="strangersjob",
        )  # fmt: skip
        self.site.run(15)
        slurm.exit(str(ENDED_ID), 0, after=0.1)
        self.site.run(15)

    def _measure(self) -> None:
        """Let the owner's jobs have measures, and reasons, decisions and events that tell them or name other jobs."""
        store, stranger = self.site.store, self.record(STRANGERS_ID).uid
        loss = to_text(Reason.of(Code.TRIAL_BELOW_MEDIAN, loss=0.7171, median=0.5, steps=24321.0))
        named = to_text(Reason.of(Code.PREEMPTED_FOR, jobs=(str(JOB_ID),), more=0))
        number = self.site.controller.round_number
        with store.transaction():
            store._write("UPDATE jobs SET loss = 0.7171, progress_steps = 24321, total_steps = 98765 WHERE user = ?",
                         [VIEWERS["owner"]])  # fmt: skip
            store._write("UPDATE jobs SET end_reason = ? WHERE slurm_job_id = ?", [loss, str(ENDED_ID)])
            for uid, reason in ((self.record(JOB_ID).uid, loss), (stranger, named)):
                store._write(
                    "INSERT INTO decisions (uid, first_round, last_round, granted, reason) VALUES (?, ?, ?, NULL, ?)",
                    [uid, number - 1, number - 1, reason],
                )
                store.event("noted", reason, uid=uid, at=self.site.slurm.now)
            store._write(
                "INSERT INTO throughput (uid, run, generation, at, step, steps, samples, seconds, loss, world_size, "
                "global_batch, per_gpu_batch, accumulation) VALUES (?, 1, 1, ?, 24321, 10, 10, 1, 0.7171, 1, 8, 8, 1)",
                [self.record(JOB_ID).uid, self.site.slurm.now],
            )

    def _think_ahead(self, directory: Path) -> None:
        """Let a shadow policy and a what-if name the owner's job."""
        store, now = self.site.store, self.site.slurm.now
        number = self.site.controller.round_number
        with store.transaction():
            store.commit_shadows([ShadowRecord(number, now, "las", "fifo", 4, (self.uid,), (self.uid,))])
        directory.mkdir()
        job = WhatIfJob(self.uid, "its own reports", {"fifo (now)": now + 60}, {"fifo (now)": 0})
        policy = WhatIfPolicy("fifo (now)", 60.0, now + 60, 0, 1, 0, 0)
        result = WhatIfResult(VIEWERS["admin"], ("las",), now, now, number, now, (policy,), (job,))
        write_result(directory / "what-if-1.json", result)


@contextlib.contextmanager
def _user(number: int) -> Iterator[None]:
    os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(0)


def rows_of_routes(seen: Observed) -> list[str]:
    """The table's rows of pages and JSON paths."""
    rows = []
    for method, path in sorted(seen.routes(), key=lambda one: (one[1].removeprefix("/api/v1"), one)):
        cells = [seen.of_route(method, path, viewer) for viewer in VIEWERS]
        rows.append(f"| `{'' if method == 'GET' else f'{method} '}{path}` | {' | '.join(cells)} |")
    return rows


def rows_of_files(seen: Observed) -> list[str]:
    """The table's rows of published files; only root can become their readers."""
    rows = []
    for name in FILES:
        cells = [seen.of_file(name, viewer) if VIEWERS[viewer] else "" for viewer in VIEWERS]
        rows.append(f"| file `{name}` | {' | '.join(cells)} |")
    return rows


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for hides in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            Path(directory).chmod(0o755)
            observed = Observed(Path(directory), private=hides)
            lines = [f"| path | {' | '.join(VIEWERS)} |", "|---" * (len(VIEWERS) + 1) + "|"]
            lines += rows_of_routes(observed) + rows_of_files(observed)
            observed.close()
            sys.stdout.write("\n".join(lines) + "\n\n")
