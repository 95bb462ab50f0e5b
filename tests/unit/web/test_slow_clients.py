"""The daemon decides the same, round for round, beside a page with slow clients, a stopped and a killed one.

``make slow-clients ROUNDS=500`` is the same with more rounds.
"""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite
from tests.unit.web.conftest import HEADER, listens

ROUNDS = int(os.environ.get("ROUNDS", "12"))
CLIENTS = 200
PATHS = ("/", "/queue", "/timeline", "/fairness?by=job", "/replay", "/api/v1/queue")
LOG_BYTES = 4 << 20


class Page:
    """A running web page of a site, and clients that do not read what they have asked for."""

    def __init__(self, base):
        self._path = base / "web.sock"
        config = base / "web.toml"
        config.write_text(
            f'[paths]\nstate = "{base}/state"\nshared = "{base}/shared"\n[web]\nsocket = "{self._path}"\n'
        )
        command = [sys.executable, "-m", "metasched", "--config", str(config), "web"]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self._clients = []
        deadline = time.monotonic() + 120
        while not listens(self._path) and time.monotonic() < deadline:
            time.sleep(0.05)

    def connect(self, text):
        made = socket.socket(socket.AF_UNIX)
        self._clients.append(made)
        made.settimeout(60)
        made.connect(str(self._path))
        made.sendall(text.encode())
        return made

    def crowd(self):
        """Half of the clients send half a request, the others read the first byte of an answer and no more."""
        for number in range(CLIENTS // 2):
            self.connect("GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            asked = PATHS[number % len(PATHS)]
            self.connect(f"GET {asked} HTTP/1.1\r\nHost: x\r\n{HEADER}: root\r\n\r\n")

    def is_answering(self):
        """Whether the page has answered a patient client."""
        return self.connect(f"GET /queue HTTP/1.1\r\nHost: x\r\n{HEADER}: root\r\n\r\n").recv(15) == b"HTTP/1.1 200 OK"

    def end(self):
        for one in self._clients:
            one.close()
        self.process.kill()
        self.process.wait(60)


def history(base, events):
    """What each round decides, and the largest write-ahead log; events happen before rounds, by their number."""
    base.mkdir()
    site = FakeSite(base, FakeSlurm([FakeNode("n1", gpus=4, cpus=16), FakeNode("n2", gpus=4, cpus=16)]), policy="las")
    log, found, largest = site.store.path.with_name("metasched.db-wal"), [], 0
    try:
        for number in range(ROUNDS):
            events.get(number, lambda _: None)(base)
            if number % 2 == 0:
                site.add(f"--gres=gpu:{1 + number % 4}", seconds=40.0)
            site.run(10)
            ids = {job.uid: job.slurm_job_id for job in site.records()}
            decided = site.store.decisions_of(site.controller.round_number)
            found.append(sorted((ids[one.uid], one.granted, one.reason) for one in decided))
            site.store.bound_log()
            largest = max(largest, log.stat().st_size)
        busy, *_ = site.store._rows("PRAGMA wal_checkpoint(TRUNCATE)")[0]
    finally:
        site.close()
    return found, largest, busy


@pytest.fixture
def pages():
    """Pages that are ended with the test."""
    made = []
    yield made
    for page in made:
        page.end()


def test_rounds_are_the_same_beside_a_page_that_is_crowded_stopped_and_killed(tmp_path, pages):
    """200 slow clients, SIGSTOP and SIGKILL change no decision; the log stays small, and no reader keeps it."""

    def begin(base):
        pages.append(Page(base))
        pages[-1].crowd()
        assert pages[-1].is_answering()

    def stop(_):
        pages[-1].process.send_signal(signal.SIGSTOP)

    def proceed(_):
        pages[-1].process.send_signal(signal.SIGCONT)
        pages[-1].process.kill()
        pages[-1].process.wait(60)

    events = {1: begin, ROUNDS // 3: stop, ROUNDS // 2: proceed, ROUNDS * 2 // 3: begin}
    alone, _, _ = history(tmp_path / "alone", {})
    beside, largest, busy = history(tmp_path / "beside", events)
    assert beside == alone
    assert any(len({granted for _, granted, _ in decided}) > 1 for decided in alone)
    assert largest < LOG_BYTES
    assert busy == 0
