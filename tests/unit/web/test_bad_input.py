"""Every page and JSON path with hostile texts, broken databases and statuses, and clocks that were set."""

import shutil
import sqlite3
import time
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from contrib.benchmarks.large_site import USERS, Sizes, build, past_uid, status
from contrib.benchmarks.web import API, addresses
from metasched.shared_dir.published_status import FILE_NAME, publish
from metasched.store import Store
from metasched.web.application import create_application
from metasched.web.settings import WebSettings

SMALL = Sizes(nodes=4, live=20, runs=60)
ADDRESSES = [*addresses(), f"/job/{past_uid(3)}", f"{API}/job/{past_uid(3)}"]
WITHOUT_STATUS = ("/policies/comparisons",)  # results of simulations, which the status does not change
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7*7 }}{% raw %}",
    "a\u202egpj.exe\u2066\u2067",
    "nul\x00\x1b[31m\r\nSet-Cookie: a=b",
    "x" * 65_536,
]


@pytest.fixture
def base(tmp_path):
    """A site with a past."""
    build(tmp_path, SMALL, time.time())
    return tmp_path


def client_of(base, user=USERS[0]):
    settings = WebSettings(base / "shared", base / "state" / "metasched.db", viewer=user)
    return TestClient(create_application(settings), raise_server_exceptions=False)


def texts(client):
    """The answer of every address; none is a failure."""
    answers = {address: client.get(address) for address in ADDRESSES}
    for address, answer in answers.items():
        assert answer.status_code in {200, 404, 503}, address
        assert "Traceback" not in answer.text
    return answers


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_in_the_history_are_shown_harmlessly(base, text):
    """Names, accounts, reasons, events and reports of the database and the status are escaped, visible and cut."""
    with Store.open(base / "state" / "metasched.db") as store, store.transaction():
        store._write("UPDATE jobs SET name = ?, account = ?, slurm_job_id = ?, error = ?", [text] * 4)
        store._write("UPDATE events SET text = ?, kind = ?", [text] * 2)
        store._write("UPDATE decisions SET reason = ?", [text])
        store._write("UPDATE actions SET outcome = ?, kind = ?", [text] * 2)
        store._write("UPDATE checkpoints SET cause = ?", [text])
    found = status(SMALL, time.time())
    changes = {"name": text, "account": text, "reason": text, "gpu_type": text, "error": text or None}
    nodes = tuple(replace(node, reason=text, drained_by=text, reservation=text, accepts=False) for node in found.nodes)
    apps = tuple(replace(app, name=text, problem=text, tuner=text) for app in found.apps)
    jobs = tuple(changed(job, **changes) for job in found.jobs)
    publish(base / "shared", replace(found, jobs=jobs, nodes=nodes, apps=apps, cluster=text, slurm=text))
    with client_of(base) as client:
        for address, answer in texts(client).items():
            assert answer.status_code == 200
            assert "set-cookie" not in answer.headers
            if not address.startswith(API):
                assert "<script>alert" not in answer.text
                assert "<img" not in answer.text
                assert ">49<" not in answer.text
                assert not set(answer.text) & set("\u202e\u2066\u2067\x00\x1b")
                assert len(answer.text) < 400_000


def without_log(base):
    """Remove what belongs to the database that was there."""
    for name in ("metasched.db-wal", "metasched.db-shm"):
        (base / "state" / name).unlink(missing_ok=True)


def missing(path):
    path.unlink()


def no_database(path):
    path.write_bytes(b"no database at all" * 1000)


def half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def torn(path):
    """Zeros in the middle, as after a loss of power on a bad disk."""
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)


def newer(path):
    with sqlite3.connect(path) as connection:
        (name,) = connection.execute("SELECT migration_set FROM _sqlite_migrations").fetchone()
        connection.execute("INSERT INTO _sqlite_migrations VALUES (9999, ?, '9999_future', '')", [name])
    connection.close()


def older(path):
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM _sqlite_migrations WHERE rowid = (SELECT max(rowid) FROM _sqlite_migrations)")
    connection.close()


def another_application(path):
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()


def directory(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "breaking",
    [missing, no_database, half, torn, newer, older, another_application, directory],
    ids=lambda f: f.__name__,
)
def test_a_broken_database_is_said_and_logged(base, breaking):
    """Pages of the past answer 503 in words, the others go on; the log names the file; a good file is read again."""
    path, kept = base / "state" / "metasched.db", base / "kept.db"
    shutil.copy(path, kept)
    with client_of(base) as client:
        assert client.get("/timeline").status_code == 200
        breaking(path)
        with capture_logs() as logs:
            answers = texts(client)
        assert answers["/"].status_code == answers["/queue"].status_code == 200
        broken = [answer for answer in answers.values() if answer.status_code == 503]
        assert broken
        for answer in answers.values():
            assert str(base) not in answer.text
        for answer in broken:
            assert "cannot be read now" in answer.text
        found = [log for log in logs if log["event"] == "database_unreadable"]
        assert found
        assert str(path) in found[0]["error"]
        assert len({log["error"] for log in found}) == len(found)
        assert not [log for log in logs if log["event"] == "page_failed"]
        if path.is_dir():
            path.rmdir()
        without_log(base)
        kept.replace(path)
        assert client.get("/timeline").status_code == 200


def test_a_locked_database_is_said_and_logged(base, monkeypatch):
    """A process that keeps the database for itself is named in the log, and pages answer 503."""
    monkeypatch.setattr("metasched.store.connection.BUSY_SECONDS", 0.01)
    other = sqlite3.connect(base / "state" / "metasched.db", isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    other.execute("UPDATE jobs SET loss = loss")
    try:
        with client_of(base) as client, capture_logs() as logs:
            answers = texts(client)
    finally:
        other.close()
    assert answers["/queue"].status_code == 200
    assert answers["/timeline"].status_code == 503
    assert any(log["event"] == "database_unreadable" for log in logs)


def test_a_takeover_puts_another_database_in_the_place(base, tmp_path_factory):
    """After a takeover, pages show the database of the daemon that took over, and nothing of the one before."""
    other = tmp_path_factory.mktemp("other")
    build(other, Sizes(nodes=4, live=0, runs=0), time.time())
    with client_of(base) as client:
        assert client.get(f"/job/{past_uid(3)}").status_code == 200
        without_log(base)
        (other / "state" / "metasched.db").replace(base / "state" / "metasched.db")
        assert client.get(f"/job/{past_uid(3)}").status_code == 404
        assert 'class="empty"' in client.get("/timeline?by=jobs").text
        texts(client)


def cut(shared, now):
    whole = (shared / FILE_NAME).read_bytes()
    (shared / FILE_NAME).write_bytes(whole[: len(whole) // 2])


def gone(shared, now):
    (shared / FILE_NAME).unlink()


def early(shared, now):
    publish(shared, status(SMALL, now + 7200))


def late(shared, now):
    publish(shared, status(SMALL, now - 7200))


@pytest.mark.parametrize(
    ("breaking", "words", "trouble"),
    [(cut, "cannot be read", "unreadable"), (gone, "cannot be read", "unreadable"), (early, "clock", "future"),
     (late, "published nothing for 2 h", "old")],
    ids=["half", "gone", "clock set back", "old"],
)  # fmt: skip
def test_a_status_that_is_not_the_present_one_is_said_and_logged(base, breaking, words, trouble):
    """Every page goes on and says why what it shows may be old; the log has one line, and one when it is over."""
    with client_of(base) as client:
        client.get("/queue")
        breaking(base / "shared", time.time())
        with capture_logs() as logs:
            answers = texts(client)
            publish(base / "shared", status(SMALL, time.time()))
            assert words not in client.get("/queue").text
        for address, answer in answers.items():
            assert answer.status_code == 200
            if not address.startswith((API, *WITHOUT_STATUS)):
                assert words in answer.text, address
        noted = [log for log in logs if log["event"] in {"status_not_present", "status_present"}]
        assert [log.get("trouble") for log in noted] == [trouble, None]
        assert not [log for log in logs if log["event"] == "page_failed"]
