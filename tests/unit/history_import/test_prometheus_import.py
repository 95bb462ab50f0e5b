"""GPU use from Prometheus: what is asked for, what is stored, and replies that are none."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from metasched.history_import.prometheus_import import EXPORTERS, Prometheus, PrometheusError, import_gpu_use
from metasched.history_import.sacct_command import AccountingError
from metasched.store import JobRecord, Store

HOUR = 3600
BEGIN = 1_000_000 * HOUR
DCGM = EXPORTERS["dcgm"]


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "s.db") as opened:
        for number in (1, 2):
            opened.add_job(JobRecord(f"{number:016x}", str(10 + number), "train", "ada", BEGIN - 10.0))
        yield opened


class Server:
    """Answers each kind of query with what it is given: JSON, or (status, headers, bytes)."""

    def __init__(self):
        self.seen, self.busy, self.idle, self.raw, self.asked = {}, {}, {}, None, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                outer.asked.append((form["query"][0], float(form["time"][0]), self.headers.get("Authorization")))
                status, headers, content = outer.raw or (200, {}, outer.reply(form["query"][0]))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def reply(self, query):
        values = self.busy if "/ 100" in query else self.idle if "< 1" in query else self.seen
        samples = [{"metric": {"hpc_job": job}, "value": [0, str(value)]} for job, value in values.items()]
        return json.dumps({"status": "success", "data": {"resultType": "vector", "result": samples}}).encode()


@pytest.fixture
def server():
    made = Server()
    yield made
    made.server.shutdown()
    made.server.server_close()


def run(store, server, hours=1):
    return import_gpu_use(store, Prometheus(server.url), DCGM, BEGIN, BEGIN + hours * HOUR)


def test_windows_are_stored_once_however_often_they_are_imported(store, server):
    """GPU-seconds that were seen, busy and idle, of the jobs that the store knows."""
    server.seen, server.busy, server.idle = {"11": 7200, "99": 60}, {"11": 1800, "99": 0}, {"11": 3600}
    for _ in range(2):
        result = run(store, server, hours=3)
        assert result.jobs == 3
        assert result.skipped == {"no such job in the database at that time": 3}
    use = store.gpu_use(f"{1:016x}")
    assert (use.gpu_seconds, use.busy, use.idle) == (3 * 7200, 0.25, 0.5)
    assert store.gpu_use(f"{2:016x}") is None
    assert store.gpu_use_of_earlier("ada", "train") == use
    assert store.gpu_use_since(BEGIN + HOUR).gpu_seconds == 2 * 7200
    assert [at - BEGIN for _, at, _ in server.asked[:9:3]] == [HOUR, 2 * HOUR, 3 * HOUR]


def test_a_reused_slurm_job_id_is_the_job_of_that_time(store, server):
    store.finish_job(f"{1:016x}", BEGIN + 100.0, "COMPLETED", 0)
    store.add_job(JobRecord("f" * 16, "11", "other", "bob", BEGIN + 2.5 * HOUR))
    server.seen, server.busy = {"11": 60}, {"11": 0}
    run(store, server, hours=4)
    assert store.gpu_use(f"{1:016x}").gpu_seconds == 60  # the first hour alone
    assert store.gpu_use("f" * 16).gpu_seconds == 120


def test_array_tasks_are_found_by_the_ids_that_slurm_gave_them(store, server):
    """Accounting is asked once for each id that the store does not know; of an id used again, the task of that time."""
    store.add_job(JobRecord("a" * 16, "40_7", "sweep", "ada", BEGIN - 10.0))
    store.add_job(JobRecord("b" * 16, "60_1", "sweep", "ada", BEGIN + 3 * HOUR))
    server.seen, server.busy = {"11": 60, "43": 60, "99": 60}, {"11": 0, "43": 0, "99": 0}
    asked = []

    def tasks_of(ids):
        asked.append(sorted(ids))
        return {"43": {"60_1", "40_7"}}

    server_url = Prometheus(server.url)
    result = import_gpu_use(store, server_url, DCGM, BEGIN, BEGIN + 2 * HOUR, tasks_of=tasks_of)
    assert (result.jobs, result.skipped) == (4, {"no such job in the database at that time": 2})
    assert (store.gpu_use("a" * 16).gpu_seconds, store.gpu_use("b" * 16)) == (120, None)
    assert asked == [["43", "99"]]


def test_where_accounting_cannot_be_asked_other_jobs_are_imported(store, server):
    """The reason is told with the jobs that were left out, and accounting is not asked again."""
    server.seen, server.busy = {"11": 60, "43": 60}, {"11": 0, "43": 0}
    calls = []

    def tasks_of(ids):
        calls.append(ids)
        raise AccountingError("sacct: Slurm accounting storage is disabled")

    result = import_gpu_use(store, Prometheus(server.url), DCGM, BEGIN, BEGIN + 2 * HOUR, tasks_of=tasks_of)
    why = "no such job in the database at that time, and no array task (sacct: Slurm accounting storage is disabled)"
    assert (result.jobs, result.skipped, len(calls)) == (2, {why: 2}, 1)


@pytest.mark.parametrize(
    ("seen", "busy", "idle"),
    [("NaN", 0, 0), ("+Inf", 0, 0), (-5, 0, 0), (60, 61, 0), (60, -1, 0), (60, "NaN", 0), (60, 0, 120), (0, 0, 0)],
)
def test_impossible_values_are_skipped(store, server, seen, busy, idle):
    server.seen, server.busy, server.idle = {"11": seen}, {"11": busy}, {"11": idle}
    assert run(store, server).skipped == {"impossible utilisation": 1}
    assert store.gpu_use(f"{1:016x}") is None


def test_hostile_job_ids_are_skipped(store, server):
    server.seen = {"x" * 65536: 60, "": 60, "\u202e11": 60}
    assert run(store, server).skipped == {"not a Slurm job id": 3}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ((200, {}, b""), "not a reply of Prometheus"),
        ((200, {}, b"<html>"), "not a reply of Prometheus"),
        ((200, {}, b"[" * 100_000), "not a reply of Prometheus"),
        (
            (200, {}, b'{"status": "success", "data": {"result": [{"metric": {}, "value": [0, "many"]}]}}'),
            "not a reply",
        ),
        ((200, {}, b'{"status": "success", "data": {"result": [{"metric": {}, "value": 5}]}}'), "not a reply"),
        ((200, {}, b'{"status": "error", "error": "query timed out"}'), "query timed out"),
        ((422, {}, b'{"status": "error", "error": "parse error"}'), "answers 422: parse error"),
        ((503, {}, b"\xff"), "answers 503"),
        ((302, {"Location": "http://127.0.0.1:9/"}, b""), "answers 302"),
        ((200, {"Content-Length": "100"}, b"{}"), "127.0.0.1"),
    ],
)
def test_replies_that_are_none_are_errors(store, server, raw, said):
    server.raw = raw
    with pytest.raises(PrometheusError, match=said):
        run(store, server)


def test_endless_replies_are_left(store, server, monkeypatch):
    monkeypatch.setattr("metasched.history_import.prometheus_import._MOST_BYTES", 2**20)
    server.raw = (200, {}, b" " * 2**22)
    with pytest.raises(PrometheusError, match="more than 1 MiB"):
        run(store, server)


def test_a_server_that_does_not_answer_is_an_error(store):
    with pytest.raises(PrometheusError, match=r"127\.0\.0\.1"):
        import_gpu_use(store, Prometheus("http://127.0.0.1:9"), DCGM, BEGIN, BEGIN + 1)
    with pytest.raises(PrometheusError, match="give the URL of Prometheus"):
        Prometheus("file:///etc/passwd")


def test_a_token_is_sent(store, server):
    import_gpu_use(store, Prometheus(server.url, "secret"), DCGM, BEGIN, BEGIN + 1)
    assert server.asked[0][2] == "Bearer secret"


def test_the_use_of_a_deleted_job_is_deleted(store, server):
    server.seen, server.busy = {"11": 60}, {"11": 0}
    run(store, server)
    store.finish_job(f"{1:016x}", BEGIN + 100.0, "COMPLETED", 0)
    store.prune_some(BEGIN + HOUR)
    assert store.delete_some_jobs(BEGIN + HOUR) == 1
    assert store.gpu_use_since(0.0) is None
