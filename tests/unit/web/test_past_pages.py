"""The pages Job, App, Timeline, Fairness and Replay: what they show, to whom, and without a daemon or a database."""

import re
import time
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed
from starlette.testclient import TestClient

from contrib.benchmarks.large_site import APP, SHOWCASE, USERS, Sizes, build, live_uid, past_uid, status
from metasched.shared_dir import published_status
from metasched.web.application import create_application
from metasched.web.settings import WebSettings

NOW = time.time()
SMALL = Sizes(nodes=6, live=20, runs=90)
PAGES = ("/apps", "/timeline", "/timeline?by=jobs", "/fairness", "/fairness?by=account", "/fairness?by=job", "/replay")
OF_ONE = (f"/job/{SHOWCASE}", f"/app/{APP}")
OTHER = USERS[7]  # the owner of none of the first ten jobs


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    directory = tmp_path_factory.mktemp("web")
    build(directory, SMALL, NOW)
    return directory


def client(base, user=USERS[0], **settings):
    given = {"shared": base / "shared", "database": base / "state" / "metasched.db", "viewer": user}
    return TestClient(create_application(WebSettings(**given | settings)), raise_server_exceptions=False)


@pytest.fixture(scope="module")
def owner(base):
    return client(base)


@pytest.fixture(scope="module")
def other(base):
    return client(base, OTHER)


def hide_jobs(monkeypatch):
    """Let the site answer as under Slurm's PrivateData=jobs."""
    from metasched.web.access import Access  # noqa: PLC0415

    whole = Access.viewer
    monkeypatch.setattr(
        Access, "viewer", lambda self, request, *, jobs_private: whole(self, request, jobs_private=True)
    )


@pytest.mark.parametrize("path", [*PAGES, *OF_ONE])
def test_each_page_has_a_twin_in_json(owner, path):
    """The same address below /api/v1 answers with JSON that names its format."""
    assert owner.get(path).status_code == 200
    answer = owner.get(f"/api/v1{path}")
    assert answer.status_code == 200
    assert answer.json()["format"].startswith("metasched.")


@pytest.mark.parametrize("path", [*PAGES, *OF_ONE])
def test_no_page_has_styles_or_scripts_of_its_own(owner, path):
    """No page needs an exception in the content security policy: no style attribute, no inline script or handler."""
    text = owner.get(path).text
    assert not re.search(r"<style|\sstyle=|<script(?![^>]*\ssrc=)|\son[a-z]+=|javascript:", text)


def test_the_job_page_tells_the_story(owner):
    """Words, runs with their GPUs, loss, throughput, use of time, batches, decisions and records are there."""
    text = owner.get(f"/job/{SHOWCASE}").text
    for expected in (
        *("runs on 8 GPUs", "it has received the least service", "Runs and their GPUs", "Loss", "Throughput"),
        *("waiting for data", "Changes of the batch", "Decisions", "Events", "Actions", "Checkpoints"),
    ):
        assert expected in text
    assert text.count('class="block cause-') >= 8


def test_a_job_is_found_by_its_slurm_job_id(owner):
    """The Slurm job id of a live job leads to it."""
    assert owner.get("/api/v1/job/900000").json()["job"]["uid"] == SHOWCASE


def test_a_job_that_ended_long_ago_is_shown_from_the_database(owner):
    """A job that the status has no longer has its runs and its end."""
    found = owner.get(f"/api/v1/job/{past_uid(3)}").json()
    assert (found["job"]["status"], len(found["runs"])) == ("COMPLETED", 3)
    assert "What happened" in owner.get(f"/job/{past_uid(3)}").text


def test_loss_and_speed_are_the_owners(owner, other):
    """Somebody else sees a job's runs, but no loss, speed, progress, batch or use of time; the series are empty."""
    text = other.get(f"/job/{SHOWCASE}").text
    assert "Loss, speed and progress are shown to the owner and to admins" in text
    assert "steps/s" not in text
    assert "Use of its time" not in text
    assert "Runs and their GPUs" in text
    found = other.get(f"/api/v1/job/{SHOWCASE}").json()
    assert (found["job"]["loss"], found["job"]["progress_steps"], found["time_use"]) == (None, None, None)
    assert (found["batches"], found["checkpoints"]) == ([], [])
    assert "steps_per_second" not in found["runs"][0]
    assert not any("loss" in sentence for sentence in found["words"])
    assert other.get(f"/api/v1/job/{SHOWCASE}/series").json().keys() == {"format"}
    assert owner.get(f"/api/v1/job/{SHOWCASE}/series").json()["loss"]["points"]


def test_the_rho_of_a_job_is_its_owners(owner, other):
    """Somebody else sees GPU hours of jobs, and means of users, but no job's rho."""
    for path in ("/api/v1/fairness?by=job", "/api/v1/fairness?by=job&span=30d"):
        rows = other.get(path).json()["rows"]
        assert rows
        assert all(row["rho"] is row["estimate"] is None for row in rows if row["user"] != OTHER)


def test_rho_is_final_of_ended_jobs_and_estimated_of_live_ones(owner, base):
    """By user, account and job, both stand side by side; a window of the past has no estimate."""
    admin = client(base, "boss", admins=("boss",))
    for by in ("user", "account"):
        rows = owner.get(f"/api/v1/fairness?by={by}").json()["rows"]
        assert sum(row["rho"]["rated"] for row in rows if row["rho"]) == SMALL.runs // 3
        assert sum(row["estimate"]["rated"] for row in rows if row["estimate"]) == 5  # the running jobs
        assert all(row["estimate"]["worst"] >= row["estimate"]["mean"] > 0 for row in rows if row["estimate"])
        past = owner.get(f"/api/v1/fairness?by={by}&end={int(NOW) - 9 * 86400}").json()["rows"]
        assert all(row["estimate"] is None for row in past)
    jobs = {row["uid"]: row for row in admin.get("/api/v1/fairness?by=job").json()["rows"]}
    assert jobs[SHOWCASE]["estimate"]["rated"] == 1
    assert jobs[SHOWCASE]["rho"] is None
    assert jobs[past_uid(3)]["rho"]["mean"] == pytest.approx(0.9)
    assert jobs[past_uid(3)]["estimate"] is None


def test_an_app_shows_who_was_ended_and_why(owner, other):
    """Trials, phases and reasons of ended trials are shown; losses to the owner alone."""
    text = owner.get(f"/app/{APP}").text
    assert "its loss is in the worse half" in text
    assert re.search(r"phase 2\b", text)
    trials = owner.get(f"/api/v1/app/{APP}").json()["trials"]
    assert [trial["state"] for trial in trials].count("ended") == 3
    assert any(trial["loss"] is not None for trial in trials)
    assert all(trial["loss"] is None for trial in other.get(f"/api/v1/app/{APP}").json()["trials"])
    assert ">Loss<" not in other.get(f"/app/{APP}").text


def test_private_jobs_are_like_jobs_that_do_not_exist(base, other, monkeypatch):
    """Under PrivateData, pages and JSON of another user's job or app answer exactly like those of none."""
    hide_jobs(monkeypatch)
    for path, missing in ((f"/job/{SHOWCASE}", "/job/none"), (f"/app/{APP}", "/app/none")):
        for prefix in ("", "/api/v1"):
            hidden, absent = other.get(prefix + path), other.get(prefix + missing)
            assert (hidden.status_code, hidden.text) == (absent.status_code, absent.text) == (404, absent.text)
    assert client(base).get(f"/job/{SHOWCASE}").status_code == 200
    assert client(base, "boss", admins=("boss",)).get(f"/job/{SHOWCASE}").status_code == 200


@pytest.mark.parametrize("path", [*PAGES, "/timeline?span=7d", "/timeline?by=jobs&span=7d", "/replay?round=3"])
def test_private_jobs_have_no_names_anywhere(base, path, monkeypatch):
    """Under PrivateData, somebody without jobs finds no uid, Slurm job id, name or user of any job."""
    hide_jobs(monkeypatch)
    stranger = client(base, "nobody")
    for address in (path, f"/api/v1{path}"):
        text = stranger.get(address).text
        assert not re.search(
            r"user\d\d|5eed0|11fe0|0a570|9000\d\d|1000\d\d|resnet50|learning-rates|least service", text
        )
    assert "another user" in stranger.get("/timeline?span=7d").text


def test_a_coordinator_sees_the_account(base, monkeypatch):
    """Under PrivateData, the coordinator of an account sees its jobs' runs and GPU hours, and no others."""
    hide_jobs(monkeypatch)
    found = client(base, "cho", coordinators={"vision": ("cho",)}).get("/api/v1/fairness?by=account").json()
    assert [row["name"] for row in found["rows"]] == ["vision"]
    runs = client(base, "cho", coordinators={"vision": ("cho",)}).get("/api/v1/timeline?span=7d").json()["runs"]
    assert 0 < sum(run["uid"] is not None for run in runs) < len(runs)


def test_the_timeline_has_a_row_for_each_node(owner):
    """Every node of the status has its row, also without runs; a wider window has more runs."""
    text = owner.get("/timeline?span=1h").text
    assert all(f"n000{number}" in text for number in range(1, 7))
    shorter, longer = (owner.get(f"/api/v1/timeline?span={span}").json()["runs"] for span in ("1h", "7d"))
    assert 0 < len(shorter) < len(longer)


def test_gpu_hours_of_users_add_up_to_those_of_accounts(owner):
    """The same window has the same sum by user and by account."""
    by_user, by_account = (owner.get(f"/api/v1/fairness?by={by}&end={int(NOW)}").json() for by in ("user", "account"))
    assert by_user["gpu_hours"] == pytest.approx(by_account["gpu_hours"])
    assert sum(row["gpu_hours"] for row in by_user["rows"]) == pytest.approx(by_user["gpu_hours"])


def test_a_round_has_its_changes_and_neighbours(owner):
    """A past round links to the rounds around it, and says which jobs started, and who held GPUs."""
    found = owner.get("/api/v1/replay?round=4").json()
    assert (found["round"], found["before"], found["after"]) == (4, 3, 5)
    assert {"starts"} <= {change["kind"] for change in found["changes"]}
    assert owner.get(f"/api/v1/replay?at={int(found['at']) + 1}").json()["round"] == 4
    assert 'rel="next" href="/replay?round=5"' in owner.get("/replay?round=4").text
    assert owner.get("/api/v1/replay").json()["after"] is None


@pytest.mark.parametrize(
    "query",
    [
        *("end=-5", "end=99999999999", "end=9e9", "end=%00", "span=%3Cscript%3E", "by=<b>", "page=0", "page=-1"),
        *(
            "page=99999999999999999999",
            "round=-1",
            "round=1e9",
            "round=99999999999",
            "at=0",
            "at=99999999999999",
            "x=y",
        ),
        *("end=1&span=7d", "span=&by=&page=&end=&round=&at=", "page=5&page=6", "end=٣"),
    ],
)
def test_any_query_has_an_answer(owner, query):
    """Unknown keys, huge pages, instants out of range and markup never fail, and are not repeated as markup."""
    for path in ("/apps", "/timeline", "/fairness", "/replay", f"/job/{SHOWCASE}", f"/app/{APP}"):
        for prefix in ("", "/api/v1"):
            answer = owner.get(f"{prefix}{path}?{query}")
            assert answer.status_code == 200
            assert "<script>" not in answer.text.replace("<script src", "")


@pytest.mark.parametrize(
    "path", ["/job/%00", "/job/..%2f..", "/job/" + "x" * 5000, "/app/%3Cb%3E", "/app/" + "/" * 500]
)
def test_strange_addresses_are_not_found(owner, path):
    """An address that names nothing is not found, whatever its characters are."""
    assert owner.get(path).status_code == 404


def test_hostile_names_are_isolated(tmp_path):
    """Markup, control and bidi characters in names are shown, never obeyed, and long names are shortened."""
    build(tmp_path, SMALL, NOW)
    name = "<img src=x onerror=alert(1)>\u202e\x1b[31m" + "n" * 70_000
    told = status(SMALL, NOW)
    jobs = tuple(changed(job, name=name, reason=name, account=name) for job in told.jobs)
    published_status.publish(tmp_path / "shared", replace(told, jobs=jobs, jobs_version=1))
    for path in (f"/job/{SHOWCASE}", "/apps", f"/app/{APP}"):
        text = client(tmp_path).get(path).text
        assert "<img" not in text
        assert "\u202e" not in text
        assert "\x1b" not in text
        assert len(text) < 200_000


@pytest.mark.parametrize("path", ["/apps", f"/job/{SHOWCASE}", f"/app/{APP}"])
def test_without_a_database_live_jobs_are_still_shown(base, path):
    """Without a database, a live job and a live app are shown from the status, and the page says so."""
    answer = client(base, database=base / "none.db").get(path)
    assert answer.status_code == 200
    if path.startswith("/job"):
        assert "No history." in answer.text


@pytest.mark.parametrize("path", ["/timeline", "/fairness", "/replay", f"/job/{past_uid(3)}"])
def test_without_a_database_the_past_is_not_available(base, path):
    """Without a database, the pages of the past say that they cannot be read now."""
    answer = client(base, database=base / "none.db").get(path)
    assert answer.status_code == 503
    assert "cannot be read now" in answer.text


@pytest.mark.parametrize("path", PAGES)
def test_without_a_status_the_past_is_shown(base, path, tmp_path):
    """Without a daemon's status, the pages of the past are shown, and say that the status is missing."""
    answer = client(base, shared=tmp_path).get(path)
    assert answer.status_code == 200
    assert "No status of the daemon can be read" in answer.text


@pytest.mark.parametrize("path", PAGES)
def test_an_empty_site_has_empty_pages(tmp_path, path):
    """Before the first job and the first round, each page says that there is nothing yet."""
    build(tmp_path, Sizes(nodes=0, live=0, runs=0), NOW)
    answer = client(tmp_path).get(path)
    assert answer.status_code == 200
    assert 'class="empty"' in answer.text


def test_a_job_page_polls_a_fragment(owner):
    """The part of the job page that changes is answered alone, without frame, with charts and records."""
    fragment = owner.get(f"/job/{SHOWCASE}", headers={"HX-Request": "true"}).text
    assert "<html" not in fragment
    for expected in ("Why it runs", 'id="plot-loss"', 'id="runs-list"', 'id="checkpoints"'):
        assert expected in fragment


def test_live_uids_are_those_of_the_status():
    """The generated site has each live job in both the database and the status."""
    assert {job.uid for job in status(SMALL, NOW).jobs} == {live_uid(index) for index in range(SMALL.live)}
