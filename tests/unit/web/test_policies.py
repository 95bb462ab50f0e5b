"""The pages of policies: shadow policies, what-ifs that an admin starts, and results of comparisons."""

import os
import re
import subprocess
import sys
import time

import pytest

from metasched.forecast.what_if_result import WhatIfJob, WhatIfPolicy, WhatIfResult, write_result
from metasched.store import ShadowRecord, Store
from metasched.web import csrf, what_if_runs
from metasched.web.access import Access
from metasched.web.pages import comparisons
from tests.unit.web.conftest import JOB, WAITING

PATH = "/policies/what-if"
TABLE = """policy,load,seed,jct_mean,utilization,rho_worst_pollux
las,1.0,0,7200.0,0.5,1.5
las,1.0,1,14400.0,0.7,2.5
fifo,1.0,0,18000.0,0.9,
"""


@pytest.fixture
def history(site):
    """A site whose database has both jobs of its status, and three rounds of a shadow policy."""
    site.publish()
    with Store.open(site.settings.database) as store, store.transaction():
        for job in (JOB, WAITING):
            store._write(
                "INSERT INTO jobs (uid, slurm_job_id, name, user, submitted, account, partition, requirements, "
                "status, run, preemptions, attained, ran_seconds) "
                "VALUES (?, ?, ?, ?, ?, ?, 'gpu', '{}', 'held', 0, 0, '{}', 0)",
                [job.uid, job.slurm_job_id, job.name, job.user, job.submitted, job.account],
            )
        store.commit_shadows(
            [
                ShadowRecord(n, 1000.0 * n, "srtf", "las", 4, ("u2",), ("u1",), 3600.0 * n, 1.5, 7200.0, 2.0)
                for n in (1, 2)
            ]
        )
        store.commit_shadows([ShadowRecord(3, 3000.0, "broken", "las", error="ValueError: <b>bad</b>")])
    return site


@pytest.fixture
def state(tmp_path):
    """The page's own directory."""
    return tmp_path / "web"


def result(**changes):
    """A what-if of both jobs under two policies."""
    names = "las (now)", "fifo"
    given = {
        "asked_by": "root",
        "asked": ("fifo",),
        "started": 5000.0,
        "ended": 5003.0,
        "round": 3,
        "at": 3000.0,
        "policies": tuple(WhatIfPolicy(name, 3600.0 * n, 9000.0, n, 2, 0, 0) for n, name in enumerate(names, 1)),
        "jobs": tuple(
            WhatIfJob(uid, "its own reports", {names[0]: 8000.0, names[1]: 9000.0}, dict.fromkeys(names, 0))
            for uid in ("u1", "u2")
        ),
    }
    return WhatIfResult(**given | changes)


def form(client, **fields):
    """The answer to the form that the page shows, with some fields changed."""
    token = re.search(rf'name="{csrf.FIELD}" value="([^"]+)"', client.get(PATH).text)
    given = {csrf.FIELD: token[1] if token else "", "policy": "fifo"}
    return client.post(PATH, data=given | fields, follow_redirects=False)


def runs_a_program(monkeypatch, program):
    """Let what-ifs run a Python program in place of a simulation."""

    def start(_):
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        return process, os.open(os.devnull, os.O_RDONLY)

    monkeypatch.setattr(what_if_runs, "_start", start)


def ended(client):
    """The page's JSON once no what-if runs."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = client.get(f"/api/v1{PATH}").json()
        if found["running"] is None:
            return found
        time.sleep(0.02)
    raise AssertionError("the what-if does not end")


def test_shadow_policies_stand_beside_the_live_one(history):
    """Latest decisions, the jobs in which they differ, and both lines of completion times and rho are shown."""
    client = history.client("ann")
    text = client.get("/policies?shadow=srtf").text
    for expected in ("srtf", "las", "It would run", "It would not run", "Mean JCT in hours", "Worst rho", "(live)"):
        assert expected in text
    assert text.count('class="line line-1"') == 4  # two charts and their legends
    data = client.get("/api/v1/policies?shadow=srtf").json()
    assert [(one["round"], one["jct"]) for one in data["rounds"]] == [(2, 7200.0), (1, 3600.0)]
    assert data["rounds"][0]["live_jct"] == 7200.0
    assert data["rounds"][0]["would_run_jobs"] == ["u2"]


def test_a_shadow_policy_that_fails_is_shown(history):
    """A policy's own error stands at its row, escaped; the end of the process stands above all."""
    history.publish(shadow_problem="its process has ended (signal 9)")
    text = history.client("ann").get("/policies").text
    assert "ValueError: &lt;b&gt;bad" in text
    assert "The shadow policies do not decide." in text
    assert "signal 9" in text


def test_shadow_decisions_name_no_hidden_jobs(history, monkeypatch):
    """Under PrivateData, other users' jobs are counted and not named."""
    whole = Access.viewer
    monkeypatch.setattr(
        Access, "viewer", lambda self, request, *, jobs_private: whole(self, request, jobs_private=True)
    )
    client = history.client("ann")
    text = client.get("/policies?shadow=srtf").text
    assert "/job/u1" in text
    assert "u2" not in text
    assert "1 other job" in text
    assert client.get("/api/v1/policies?shadow=srtf").json()["rounds"][0]["would_run_jobs"] == []


def test_without_shadow_policies_or_a_database_the_page_says_so(site):
    """An empty page names the configuration's key; one without a database says that it cannot be read."""
    site.publish()
    assert "cannot be read" in site.client().get("/policies").text
    Store.open(site.settings.database).close()
    assert "[shadow] policies" in site.client().get("/policies").text


def test_a_what_if_of_an_admin_is_kept(history, state, monkeypatch):
    """The admin's form starts a process; its result is shown to everybody, also by a page that was started again."""
    runs_a_program(monkeypatch, "pass")
    answer = form(history.client("root", state=state))
    assert (answer.status_code, answer.headers["location"]) == (303, PATH)
    write_result(state / "what-if-1.json", result())
    found = ended(history.client("ann", state=state))
    assert (found["number"], found["result"]["round"], len(found["result"]["jobs"])) == (1, 3, 2)
    text = history.client("ann", state=state).get(PATH).text
    for expected in ("las (now)", "100.0 % longer", "16 min 40 s later", "101", "102"):
        assert expected in text
    assert "<form" not in text  # ann is no admin


def test_a_what_if_names_no_hidden_jobs(history, state, monkeypatch):
    """Under PrivateData, other users' jobs are counted and not named."""
    state.mkdir()
    write_result(state / "what-if-1.json", result())
    whole = Access.viewer
    monkeypatch.setattr(
        Access, "viewer", lambda self, request, *, jobs_private: whole(self, request, jobs_private=True)
    )
    client = history.client("ann", state=state)
    for text in (client.get(PATH).text, client.get(f"/api/v1{PATH}").text):
        assert "u1" in text
        assert "u2" not in text
        assert "bob" not in text
    assert client.get(f"/api/v1{PATH}").json()["hidden_jobs"] == 1


@pytest.mark.parametrize(
    ("program", "expected"),
    [("raise SystemExit('no <memory>')", "no &lt;memory&gt;"), ("import os; os.kill(os.getpid(), 11)", "signal 11")],
)
def test_a_crash_of_a_what_if_is_shown(history, state, monkeypatch, program, expected):
    """How the process ended is kept as the result, and the next one can be started."""
    runs_a_program(monkeypatch, program)
    client = history.client("root", state=state)
    assert form(client).status_code == 303
    assert "crashed" in ended(client)["result"]["problem"]
    assert expected in client.get(PATH).text
    assert form(client).status_code == 303
    assert ended(client)["number"] == 2


def test_one_what_if_runs_at_a_time(history, state, monkeypatch):
    """A second one is refused, with who runs the first."""
    started = []
    runs_a_program(monkeypatch, "import time; time.sleep(300)")
    begin = what_if_runs._start
    monkeypatch.setattr(what_if_runs, "_start", lambda task: started.append(begin(task)) or started[-1])
    client = history.client("root", state=state)
    try:
        assert form(client).status_code == 303
        assert "A what-if runs." in client.get(PATH).text
        refused = form(client)
        assert refused.status_code == 409
        assert "A what-if of root runs already" in refused.text
    finally:
        started[0][0].kill()
    ended(client)
    assert len(started) == 1


def test_only_an_admin_starts_one_and_only_from_the_page(history, state, monkeypatch):
    """Other users, other sites' forms, and bodies that are no form start nothing."""
    runs_a_program(monkeypatch, "pass")
    other = history.client("ann", state=state)
    assert "<form" not in other.get(PATH).text
    assert other.post(PATH, data={csrf.FIELD: csrf.token("ann", "what-if"), "policy": "fifo"}).status_code == 403
    client = history.client("root", state=state)
    for token in (
        "",
        "x",
        csrf.token("ann", "what-if"),
        csrf.token("root", "other"),
        csrf.token("root", "what-if", now=1.0),
    ):
        assert form(client, **{csrf.FIELD: token}).status_code == 403
    assert client.post(PATH, content=b"x" * 20_000).status_code == 400
    assert client.post(PATH, content=b"\xff\xfe").status_code == 400
    assert not state.exists()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"policy": ""}, "at least one policy"),
        ({"policy": [f"p{n}" for n in range(9)]}, "at most 6"),
        ({"policies": "las:promote_knob=many"}, "promote_knob"),
        ({"policy": "<script>"}, "&lt;script&gt;"),
    ],
)
def test_what_cannot_be_compared_is_explained(history, state, fields, expected):
    """The form comes back with the reason, and no process is started."""
    answer = form(history.client("root", state=state), **fields)
    assert answer.status_code == 409
    assert expected in answer.text
    assert not state.exists()


def test_a_directory_that_cannot_be_written_is_named(history, tmp_path):
    """The admin is told which key of the configuration to look at."""
    (tmp_path / "file").write_text("")
    answer = form(history.client("root", state=tmp_path / "file" / "below"))
    assert answer.status_code == 409
    assert "[web] state" in answer.text


def test_old_results_are_removed(history, state, monkeypatch):
    """At most so many results are kept as the page lists."""
    state.mkdir()
    for number in range(1, what_if_runs.KEPT + 3):
        write_result(state / f"what-if-{number}.json", result())
    runs_a_program(monkeypatch, "pass")
    client = history.client("root", state=state)
    form(client)
    ended(client)
    assert not (state / "what-if-1.json").exists()


def test_a_damaged_result_is_not_shown(history, state):
    """Half a file is answered by words."""
    state.mkdir()
    (state / "what-if-1.json").write_bytes(b'{"asked_by": "ro')
    assert "This result cannot be read" in history.client("ann", state=state).get(PATH).text


def test_comparisons_are_read_from_their_directory(site, tmp_path):
    """Means and standard deviations over the seeds are shown, and the best policy of a load is marked."""
    site.publish()
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / comparisons.TABLE).write_text(TABLE)
    client = site.client("ann", comparisons=tmp_path / "runs")
    found = client.get("/api/v1/policies/comparisons").json()
    assert found["names"] == ["mine"]
    las, fifo = found["comparison"]["rows"]
    assert (las["policy"], las["seeds"], fifo["seeds"]) == ("las", 2, 1)
    assert las["values"][0] == {"mean": 3.0, "spread": pytest.approx(2**0.5), "is_best": True}
    assert fifo["values"] == [
        {"mean": 5.0, "spread": None, "is_best": False},
        {"mean": 90.0, "spread": None, "is_best": True},
        None,
    ]
    text = client.get("/policies/comparisons").text
    assert "Mean JCT, h" in text
    assert text.count("★") == 3  # two values and the explanation


@pytest.mark.parametrize(
    "table", ["", "policy,load\n", "a,b\n1,2\n", 'policy,load,seed,jct_mean\nlas,1,0,"many"\n', "\x00"]
)
def test_another_table_is_not_shown(site, tmp_path, table):
    """A table of something else is answered by words."""
    site.publish()
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / comparisons.TABLE).write_text(table)
    assert "Nothing to show" in site.client(comparisons=tmp_path / "runs").get("/policies/comparisons").text


def test_no_file_beside_the_directory_is_read(site, tmp_path):
    """A name from the address must be one of the directory's comparisons."""
    site.publish()
    (tmp_path / "runs").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / comparisons.TABLE).write_text(TABLE)
    client = site.client(comparisons=tmp_path / "runs")
    for name in ("../secret", "..%2Fsecret", str(tmp_path / "secret")):
        assert "No comparisons" in client.get(f"/policies/comparisons?name={name}").text
    assert "No comparisons" in site.client(comparisons=tmp_path / "missing").get("/policies/comparisons").text
