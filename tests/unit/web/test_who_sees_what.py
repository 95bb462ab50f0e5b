"""Who sees what of a job: two users, a coordinator, an admin and nobody, on every page, JSON path and file."""

import os
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.unit.web.who_sees_what import HEADER, NAMES, NOTHING, VIEWERS, WHOLE, Observed, rows_of_files, rows_of_routes

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "admin" / "THREATS.md"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")


@pytest.fixture(params=[False, True], ids=["PrivateData=none", "PrivateData=jobs"])
def private(request):
    """Whether Slurm hides jobs."""
    return request.param


@pytest.fixture
def seen(open_tmp, private):
    """A site with jobs of two users."""
    made = Observed(open_tmp, private=private)
    yield made
    made.close()


def documented(private, kind):
    """The rows of the page's first table, or of its second, of files or of routes."""
    tables = PAGE.read_text().split("| path |")
    lines = tables[1 + private].splitlines()[2:]
    rows = [line for line in lines[: lines.index("")] if line.startswith("|")]
    return [row for row in rows if row.startswith("| file ") == (kind == "files")]


def test_every_page_and_json_path_shows_what_the_table_says(seen, private):
    """Each route has a row of who sees what; `python -m tests.unit.web.who_sees_what` prints the table anew."""
    assert rows_of_routes(seen) == documented(private, "routes")


@as_root
def test_every_published_file_shows_what_the_table_says(seen, private):
    """Each file and directory is read as five Unix users."""
    assert rows_of_files(seen) == documented(private, "files")
    known = {re.sub(r"<[a-z]+>|\W", "", row.split("`")[1].split("/")[0]) for row in documented(private, "files")}
    assert {re.sub(r"\W", "", path.name) for path in seen.shared.iterdir()} <= known


@pytest.mark.parametrize("private", [True], indirect=True)
def test_numbers_are_found_whole(seen):
    """Digits of a longer number or of a uid, which differ by run, are not taken for measures or job ids."""
    levels = {
        '{"steps": 24321.0}': WHOLE,
        "loss 0.7171, 98765 steps": WHOLE,
        "job 77001": NAMES,
        "77001_3": NAMES,
        "node77001": NAMES,
        "/metasched-77001.out": NAMES,
        '{"at": 1795978558.243217, "share": 0.98765}': NOTHING,
        "/job/6b0c77001c8af005": NOTHING,
        "mailbox/77001c8af6b0c005/lease.json": NOTHING,
    }
    assert {text: seen.level(text) for text in levels} == levels


@pytest.mark.parametrize("private", [True], indirect=True)
def test_the_own_jobs_name_no_jobs_that_are_hidden(seen):
    """Reasons, decisions and events of a user's own job name no other user's job where Slurm hides jobs."""
    with TestClient(seen.application) as client:
        client.headers[HEADER] = VIEWERS["another user"]
        for path in ("/job/{uid}", "/api/v1/job/{uid}", "/queue", "/api/v1/queue", "/replay?round=3"):
            answer = client.get(path.format(uid=seen.strangers_uid))
            assert answer.status_code == 200
            assert seen.level(answer.text) == NOTHING
        assert "another user" in client.get(f"/job/{seen.strangers_uid}").text


@pytest.mark.parametrize("private", [True], indirect=True)
@pytest.mark.parametrize("breaking", [False, True], ids=["with a database", "without a database"])
def test_a_hidden_job_is_like_one_that_does_not_exist(seen, breaking, monkeypatch):
    """Status, body and the statements of the database are the same, so that nothing tells a hidden job from none."""
    if breaking:
        seen.application.state.site.database.path = Path("/nowhere/metasched.db")
    statements = []
    from metasched.store.connection import Connection  # noqa: PLC0415  patched here

    rows = Connection._rows
    monkeypatch.setattr(Connection, "_rows", lambda self, sql, *args: statements.append(sql) or rows(self, sql, *args))
    with TestClient(seen.application) as client:
        client.headers[HEADER] = VIEWERS["another user"]
        for path, hidden in (
            ("/job/{}", seen.uid),
            ("/job/{}/series", seen.uid),
            ("/job/{}", "77001"),
            ("/app/{}", seen.app),
        ):
            for prefix in ("", "/api/v1"):
                found = []
                for name in (hidden, "0" * len(hidden)):
                    statements.clear()
                    answer = client.get(prefix + path.format(name))
                    found.append((answer.status_code, answer.text.replace(name, "NAME"), list(statements)))
                assert found[0] == found[1]
                assert found[0][0] == (503 if breaking and not path.endswith("series") else found[0][0])
