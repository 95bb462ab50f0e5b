import json
import sqlite3
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from metasched.cli import main
from metasched.configuration.file_names import COPIES, DATABASE, LOCK
from metasched.core.model import Placement
from metasched.core.policy import PolicyState
from metasched.core.reasons import Reason
from metasched.daemon.failover import write_copy
from metasched.history_import.sacct_command import array_tasks
from metasched.shared_dir.lock import DaemonLock
from metasched.simulator.traces.history import read_history
from metasched.store import EndCause, JobRecord, Store
from tests.programs import write_program

NOW = time.time()
DAY = 86400.0
UID = "0123456789abcdef"


@pytest.fixture
def site(tmp_path):
    """A configuration with a database of one finished job and one round of ten days ago."""
    state, shared = tmp_path / "state", tmp_path / "shared"
    shared.mkdir()
    (tmp_path / "metasched.toml").write_text(f'[paths]\nstate = "{state}"\nshared = "{shared}"\n')
    at = NOW - 10 * DAY
    placement = Placement(("n1",), 2, "v100")
    with Store.open(state / DATABASE) as store:
        store.add_job(JobRecord(uid=UID, slurm_job_id="12", name="resnet", user="ada", submitted=at))
        for number in (1, 2):
            store.commit_round(
                number,
                at=at,
                policy="las",
                parameters={},
                state=PolicyState(),
                targets={UID: placement},
                reasons={UID: Reason.text("first")},
                decide_seconds=0.1,
            )
            store.keep_snapshot(number, b"\xff\x00", 100)
        store.release(UID, 1, placement, at)
        store.run_started(UID, 1, at + 1, placement)
        store.run_ended(UID, 1, at + 61, EndCause.FINISHED)
        store.finish_job(UID, at + 61, "COMPLETED", 0)
        store.event("finished", "all \x1b[1m well", UID, at=at + 61)
    return tmp_path


@pytest.fixture
def db(site):
    """Calls `metasched db`."""
    return lambda *argv: CliRunner().invoke(
        main, ["--config", str(site / "metasched.toml"), "db", *map(str, argv)], env={"COLUMNS": "300"}
    )


def test_path_prints_the_path_of_the_database(db, site):
    """The path is in the configured state directory."""
    assert db("path").output.strip() == str(site / "state" / DATABASE)
    assert json.loads(db("path", "--json").output)["exists"] is True


def test_state_option_wins(db, tmp_path):
    """--state names another directory than the configuration."""
    assert db("--state", tmp_path / "other", "path").output.strip() == str(tmp_path / "other" / DATABASE)


def test_sizes_counts_rows_and_bytes(db):
    """Each table has its number of rows; the file has its bytes."""
    data = json.loads(db("sizes", "--json").output)
    assert (data["rows"]["jobs"], data["rows"]["rounds"]) == (1, 2)
    assert data["bytes"] > 0
    assert "on disk" in db("sizes").output


def test_events_lists_events_without_control_characters(db):
    """An event names its job as squeue does; --job restricts the list to one job."""
    (event,) = json.loads(db("events", "--json").output)["rows"]
    assert [event[key] for key in ("kind", "uid", "slurm_job_id", "name", "user")] == [
        "finished",
        UID,
        "12",
        "resnet",
        "ada",
    ]
    assert db("events").output.splitlines()[1].split()[2:6] == ["12", "resnet", "ada", "finished"]
    assert json.loads(db("events", "--job", "resnet", "--json").output)["rows"]
    assert r"all \x1b[1m well" in db("events").output


@pytest.mark.parametrize("command", [["db", "--state", "/", "events", "--limit"], ["replay", "--last"]])
def test_a_number_beyond_sqlites_range_is_wrong_usage(command):
    """The number is a usage error, no traceback."""
    assert CliRunner().invoke(main, [*command, "9" * 20]).exit_code == 2


def test_runs_lists_the_runs_of_a_job(db):
    """The job is found by Slurm job id, uid and name."""
    for asked in ("12", UID, "resnet"):
        (run,) = json.loads(db("runs", asked, "--json").output)["rows"]
        assert (run["run"], run["cause"]) == (1, "finished")
    assert "n1:2" in db("runs", "12").output


def test_an_unknown_job_is_an_error(db):
    """The message names the unknown job."""
    result = db("runs", "nobody")
    assert (result.exit_code, "'nobody'" in result.stderr) == (1, True)


def test_a_missing_database_is_an_error_and_stays_missing(db, site):
    """No command creates the file."""
    for command in (["sizes"], ["check"], ["events"], ["export"], ["prune", "--before", "1"]):
        result = db("--state", site / "none", *command)
        assert (result.exit_code, str(site / "none") in result.stderr) == (1, True)
    assert not (site / "none").exists()


def test_check_passes_a_sound_database(db):
    """Both outputs say that the file is sound."""
    result = db("check")
    assert (result.exit_code, "is whole" in result.output) == (0, True)
    assert json.loads(db("check", "--json").output)["problems"] == []


def test_check_finds_dangling_references(db, site):
    """A row that refers to a missing job is found, with exit code 1."""
    with sqlite3.connect(site / "state" / DATABASE) as raw:
        raw.execute("PRAGMA foreign_keys = OFF")
        raw.execute("INSERT INTO events (at, uid, kind, text) VALUES (0, 'nobody', 'x', 'y')")
    raw.close()
    result = db("check")
    assert (result.exit_code, "missing row of jobs" in result.stderr) == (1, True)
    as_json = db("check", "--json")
    assert (as_json.exit_code, len(json.loads(as_json.stdout)["problems"])) == (1, 1)


def test_check_finds_damage(db, site):
    """Overwritten pages are an error that names the file."""
    path = site / "state" / DATABASE
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * len(content[4096:])
    path.write_bytes(content)
    result = db("check")
    assert result.exit_code == 1
    assert str(path) in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_prune_deletes_details_and_keeps_jobs_and_runs(db):
    """Old rounds and events are deleted; the job and its runs stay."""
    deleted = json.loads(db("prune", "--before", 5, "--json").output)["rows"]
    assert (deleted["rounds"], deleted["events"]) == (1, 1)
    rows = json.loads(db("sizes", "--json").output)["rows"]
    assert (rows["jobs"], rows["runs"], rows["events"]) == (1, 1, 0)
    assert "nothing is that old" in db("prune", "--before", 5).output


def test_prune_is_refused_while_the_daemon_runs(db, site):
    """The daemon is the only writer: while it holds the lock nothing is deleted."""
    lock = site / "shared" / LOCK
    with DaemonLock(lock):
        # A POSIX lock does not keep its own process out, so the attempt is made from another one.
        code, text = attempt(site)
    assert code == 1
    assert str(lock) in text
    assert "--standby" not in text  # which it has not
    assert json.loads(db("sizes", "--json").output)["rows"]["events"] == 1


def test_a_superseded_store_is_not_written(db, site):
    """Its rows would be lost at the daemon's next start; the copy in a directory named by --shared counts, too."""
    other = site / "other"
    (site / "elsewhere").mkdir()
    with Store.open(other / DATABASE) as store:
        store.begin_term(1)
    write_copy(other / DATABASE, site / "elsewhere" / COPIES)
    done = db("--shared", site / "elsewhere", "prune", "--before", 5)
    assert (done.exit_code, "another host" in done.stderr) == (1, True)
    assert json.loads(db("prune", "--before", 5, "--json").output)["rows"]["events"] == 1


def attempt(site):
    argv = [sys.executable, "-m", "metasched", "--config", site / "metasched.toml", "db", "prune", "--before", "5"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def test_export_gives_every_row(db):
    """One JSON object a line, with the table's name."""
    rows = [json.loads(line) for line in db("export").output.splitlines()]
    counts = json.loads(db("sizes", "--json").output)["rows"]
    for table, count in counts.items():
        assert len([row for row in rows if row["table"] == table]) == count
    (job,) = (row for row in rows if row["table"] == "jobs")
    assert job["name"] == "resnet"
    assert {row["data"] for row in rows if row["table"] == "snapshots"} == {"/wA="}


SACCT = "AdminComment|JobID|User|Account|Submit|ElapsedRaw|AllocTRES|Partition|Start|End|State|NodeList|JobName"


def accounted(job, *, state="COMPLETED", submit=1000, seconds=100, gres="gres/gpu=2,gres/gpu:v100=2", **more):
    """Return one record of sacct."""
    facts = {"comment": "", "user": "ada", "nodes": "n[1-2]", "name": "bert", "begun": 10, **more}
    if isinstance(submit, int):
        facts["begun"] += submit
    end = facts.get("end", facts["begun"] + seconds)
    fields = [
        facts["comment"],
        job,
        facts["user"],
        "lab",
        submit,
        seconds,
        f"cpu=4,{gres}",
        "main",
        facts["begun"],
        end,
    ]
    return "|".join(map(str, [*fields, state, facts["nodes"], facts["name"]]))


@pytest.fixture
def output(tmp_path):
    """Writes a file as sacct would."""

    def write(*records):
        path = tmp_path / "sacct.txt"
        path.write_text("\n".join([SACCT, *records]) + "\n")
        return path

    return write


def test_import_adds_each_job_once(db, site, output):
    """A job's runs are one job; own, running, never started, CPU-only and unreadable jobs are counted and left out."""
    path = output(
        accounted("7", state="REQUEUED", submit=1000),
        accounted("7", submit=1200, seconds=300, name="\x1b[1mbert"),
        accounted("7", submit=9000, name="the id again"),
        accounted("8_3", state="CANCELLED by 0", gres="gres/gpu=1", nodes="n1"),
        accounted("12", comment=f"metasched:{UID}"),
        accounted("9", state="RUNNING", end="Unknown"),
        accounted("10_[4-5]", state="CANCELLED by 0", seconds=0),
        accounted("11", gres="node=1"),
        accounted("13", name="a|b"),
        accounted("14; rm", user="eve"),
        accounted("15", submit="yesterday"),
        accounted("16.batch"),
        accounted("17", state="REQUEUED"),
    )
    first = json.loads(db("import", path, "--json").output)
    why = {"known already": 1, "not ended": 2, "never ran": 1, "without GPUs": 1, "could not be read": 3}
    assert (first["read"], first["imported"], first["skipped"]) == (11, 3, why)
    assert "line 10" in first["unreadable"]
    again = db("import", path).output
    assert "imported 0" in again
    assert "skipped 4: known already" in again
    with Store.open(site / "state" / DATABASE, read_only=True) as store:
        job = store.job("sacct:7:1200")
        assert (job.submitted, job.finished, job.end_state, job.attained) == (1000, 1510, "COMPLETED", {"v100": 800.0})
        assert [(run.started, run.ended, run.cause) for run in store.runs(job.uid)] == [
            (1010, 1110, EndCause.LOST),
            (1210, 1510, EndCause.FINISHED),
        ]
        assert job.last_placement == Placement(("n1", "n2"), 1, "v100")
        assert store.job("sacct:8_3:1000").attained == {"gpu": 100.0}
        assert store.live_jobs() == []
        assert [one.uid for one in store.recent_jobs(imported=False)] == [UID]
        assert len(store.completed_jobs("ada", "the id again", 5)) == 1
    assert len(json.loads(db("runs", "7", "--json").output)["rows"]) > 0
    assert json.loads(db("check", "--json").output)["problems"] == []


def test_imported_jobs_are_history_for_simulations(db, site, output):
    """The simulation has them with the work that they did."""
    db("import", output(accounted("7", seconds=300)))
    with Store.open(site / "state" / DATABASE) as store:
        store.update_job(UID, requirements={"gpus": 2, "min_gpus": 2, "max_gpus": 2})
    (found,) = [one for one in read_history(site / "state" / DATABASE).submissions if one.job.name == "bert"]
    place = Placement(("n1", "n2"), 1, "v100")
    assert found.training.total / found.training.pace(0.0, place).steps_per_second == 300


def test_prune_deletes_old_imported_jobs_whole(db, output):
    """Slurm's accounting still has them; younger imported jobs stay."""
    db("import", output(accounted("7"), accounted("8", submit=int(NOW) - 1000)))
    deleted = json.loads(db("prune", "--before", 5, "--json").output)["rows"]
    assert (deleted["jobs"], deleted["runs"]) == (1, 1)
    assert json.loads(db("sizes", "--json").output)["rows"]["jobs"] == 2


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo no >&2; exit 3", "sacct: no"),
        ("echo JobID", "column is missing"),
    ],
)
def test_saccts_complaint_is_shown(db, tmp_path, monkeypatch, script, told):
    """No job is imported."""
    fake_sacct(tmp_path, monkeypatch, script)
    done = db("import")
    assert done.exit_code == 1
    assert told in done.output


def fake_sacct(tmp_path, monkeypatch, script):
    """Install a fake sacct on PATH."""
    program = tmp_path / "bin" / "sacct"
    write_program(program, f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


def test_job_names_cannot_forge_fields_of_sacct(db, site, tmp_path, monkeypatch):
    """A name with line breaks and bars is one name: the delimiter is random."""
    evil = "x\n" + accounted("99", user="root") + "\n"
    line = accounted("7", name="NAME")
    (tmp_path / "name").write_text(evil)
    script = f"""for word; do
      case $word in --delimiter=*) d=${{word#--delimiter=}};; --format=*) f=${{word#--format=}};; esac
    done
    echo "$f" | sed "s/,/$d/g"
    printf %s '{line}' | sed "s/|/$d/g; s/NAME$//"
    cat {tmp_path}/name"""
    fake_sacct(tmp_path, monkeypatch, script)
    assert "imported 1" in db("import", "--since", "2025-01-01").output
    with Store.open(site / "state" / DATABASE, read_only=True) as store:
        assert [(one.uid, one.name) for one in store.recent_jobs() if one.uid != UID] == [("sacct:7:1000", "x")]


def test_sacct_tells_the_array_tasks_of_ids(tmp_path, monkeypatch):
    """Slurm gives each task an id of its own, and uses ids again; other jobs, and ids that are none, are left out."""
    script = 'echo "$*" >"${0%/*}/asked"; printf "41|40_1\\n41|7_9\\n42|42\\n43|40_[5-9]\\n"'
    fake_sacct(tmp_path, monkeypatch, script)
    assert array_tasks(["41", "42", "43", "--user=x", "1 2"]) == {"41": {"40_1", "7_9"}}
    assert "--jobs=41,42,43 " in (tmp_path / "bin" / "asked").read_text()
