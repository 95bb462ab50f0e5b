import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from metasched.cli import caller, main, submit
from metasched.configuration.file_names import DATABASE
from metasched.daemon import dry_run
from metasched.presentation import formatting, job_explanation
from metasched.shared_dir.published_status import (
    AdviceStatus,
    BatchStatus,
    InstantStatus,
    JobForecastStatus,
    NodeStatus,
    PlannedStatus,
    PlanStatus,
    job_fields,
    publish,
)
from metasched.slurm.tags import KEYS, parse_tag
from metasched.store import JobRecord, Store
from tests.programs import write_program
from tests.unit.statuses import NOW, job, published, waiting

BATCH = BatchStatus(
    adaptive=True,
    first_batch=64,
    present=PlanStatus(64, 2, 256),
    efficiency=0.87,
    noise_scale=1200.0,
    wanted=PlanStatus(256, 1, 512),
    note="its trainer has not started yet",
    note_code="batch_awaits_trainer",
)


@pytest.fixture(autouse=True)
def _no_site(monkeypatch):
    """Remove the machine's own configuration from the environment."""
    for name in ("METASCHED_SHARED", "METASCHED_CONFIG", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "300")


@pytest.fixture
def run():
    """Calls the command line."""
    return lambda *argv: CliRunner().invoke(main, [str(argument) for argument in argv])


@pytest.fixture
def show(tmp_path, run, monkeypatch):
    """Publishes a status and calls a command on it, which must succeed; time stands still meanwhile."""
    monkeypatch.setattr(time, "time", lambda: NOW)

    def call(status, *argv):
        publish(tmp_path, status)
        result = run(*argv, "--shared", tmp_path)
        assert result.exit_code == 0, result.output
        return result.output

    return call


def test_status_shows_cluster_nodes_and_jobs(show):
    """The tables show the policy, the used GPUs, and each job's nodes, progress and reason."""
    output = show(published(), "status")
    for expected in ("dev: policy las, round 17", "next in", "2/4", "takes no new jobs"):
        assert expected in output
    (row,) = (line for line in output.splitlines() if "resnet" in line)
    for expected in ("12", "ada", "running", "2 of 1-4", "n1:2 v100", "20 s", "1 min 20 s", "1st of 2 in line"):
        assert expected in row
    assert "120/400 (30%), 2 min 20 s left" in row
    assert "2nd of 2 in line; waits for 4 GPUs" in output


def test_status_reports_a_stale_file(show):
    """An old file is shown as stale, a fresh one is not."""
    assert "STALE" in show(published(published=time.time() - 600), "status")
    assert "STALE" not in show(published(), "status")


def test_status_reports_degraded_rounds(show):
    """The headline says why, and in how many rounds; without a degraded round it says nothing."""
    why = "the policy's program could not be solved, and time shares come from equal shares of all GPUs"
    output = show(published(degraded=why, degraded_rounds=3), "status")
    assert f"DEGRADED: {why}; 3 such rounds since the daemon's start" in " ".join(output.split())
    assert "DEGRADED" not in show(published(degraded_rounds=3), "status")


def test_status_reports_an_unreachable_slurm(show):
    """The error of the daemon's last read stands at the top."""
    assert "Slurm: controller is down" in show(published(slurm="controller is down"), "status")


def test_status_shows_a_malformed_tag(show):
    """A job with an unusable tag shows the error in place of a reason."""
    assert "no key 'min_gpu'" in show(published(jobs=(waiting(error="there is no key 'min_gpu'"),)), "status")


def test_status_shows_finished_jobs(show):
    """A finished job is listed with its state, sizes and loss."""
    ended = job(status="failed", finished=NOW - 5, nodes={})
    output = show(published(jobs=(), finished=(ended,)), "status")
    assert "no jobs of metasched wait or run" in output
    (row,) = (line for line in output.splitlines() if "resnet" in line)
    for expected in ("failed", "4 → 2", "0.25"):
        assert expected in row


@pytest.mark.parametrize("command", [["status"], ["explain", "12"]])
def test_users_text_cannot_control_the_terminal(show, command):
    """Control characters are escaped; rich's markup and emoji codes are printed literally."""
    name = "a\x1b[31mb\u202ec\n[red]d[/red]:bomb:"
    output = show(published(jobs=(job(name=name[:32], reason="\x07" + name),)), *command)
    assert not set("\x1b\x07\u202e") & set(output)
    assert r"a\x1b[31mb\u202ec\n[red]d[/red]:bomb:" in output


def test_status_shows_one_users_jobs(show):
    """--user leaves out other users' jobs."""
    status = published(jobs=(job(), waiting(user="bob")), finished=(job(name="old", finished=NOW, user="bob"),))
    output = show(status, "status", "--user", "ada")
    assert "resnet" in output
    assert not {"bert", "old"} & set(output.split())


def test_status_tells_when_a_job_that_runs_ends(show):
    """A forecast from before its start had its start; a job that waits still has it. Empty columns are left out."""
    forecast = JobForecastStatus(NOW - 60, InstantStatus(NOW, NOW, NOW), InstantStatus(NOW + 7200, NOW, NOW + 10800))
    bare = {"forecast": forecast, "progress_steps": None, "total_steps": None}
    output = show(published(jobs=(job(**bare), waiting(**bare))), "status")
    lines = {name: line for line in output.splitlines() for name in ("resnet", "bert") if name in line}
    assert "ends in 2 h to 3 h" in lines["resnet"]
    assert "starts by now" in lines["bert"]
    assert ("EXPECTED" in output, "PROGRESS" in output) == (True, False)


def test_status_of_a_long_queue_is_short(show):
    """--limit cuts the table, keeps running jobs, and prints the number of jobs left out."""
    output = show(
        published(jobs=(*(waiting(slurm_job_id=str(i)) for i in range(20, 30)), job())), "status", "--limit", "3"
    )
    assert "resnet" in output
    assert len([line for line in output.splitlines() if "bert" in line]) == 2
    assert "and 8 more (8 held)" in output


def test_status_selects_by_state_account_and_caller(show, monkeypatch):
    """The options leave out other jobs, live and ended; --state waiting stands for held and queued."""
    ended = job(name="old", status="failed", finished=NOW - 5, account="vision")
    status = published(jobs=(job(account="vision"), waiting(user="bob", account="nlp")), finished=(ended,))
    monkeypatch.setattr(caller, "own_name", lambda: "bob")
    monkeypatch.setattr("metasched.cli.status.own_name", lambda: "bob")

    def names(*options):
        shown = json.loads(show(status, "status", "--json", *options))
        return [one["name"] for one in (*shown["jobs"], *shown["finished"])]

    assert names("--me") == ["bert"]
    assert names("--account", "vision") == ["resnet", "old"]
    assert names("--state", "waiting") == ["bert"]
    assert names("--state", "waiting", "--state", "failed") == ["bert", "old"]


def test_an_unknown_state_has_a_suggestion(tmp_path, run):
    """A state that no job can be in is a usage error, not an empty table."""
    publish(tmp_path, published())
    result = run("status", "--state", "runing", "--shared", tmp_path)
    assert (result.exit_code, "did you mean running" in result.stderr) == (2, True)


@pytest.mark.parametrize(("order", "first"), [("waited", "bert"), ("gpus", "resnet"), ("name", "bert")])
def test_status_sorts_live_jobs(show, order, first):
    """Times and numbers descend, names ascend."""
    status = published(jobs=(job(), waiting(waited_seconds=500.0)))
    rows = [line for line in show(status, "status", "--sort", order).splitlines() if "ada" in line]
    assert first in rows[0]


def test_status_folds_alike_nodes(show):
    """512 nodes of a few kinds take a few rows; --nodes lists each."""
    nodes = tuple(NodeStatus(f"n{i:03d}", "v100", 8, 8 * (i % 2), accepts=i % 64 != 0) for i in range(512))
    output = show(published(nodes=nodes), "status")
    assert "resnet" in "".join(output.splitlines()[:12])
    assert "... (256 nodes)" in output
    assert "8/8 each" in output
    assert len(show(published(nodes=nodes), "status", "--nodes").splitlines()) > 512


def test_the_table_of_nodes_is_bounded(show):
    """Nodes that differ all have one common row after the first groups."""
    nodes = tuple(NodeStatus(f"n{i}", "v100", 1000, i, accepts=True) for i in range(100))
    output = show(published(nodes=nodes), "status")
    assert re.search(r"others \(--nodes lists all\) +92", output)


def test_the_summary_counts_jobs_and_gpus(show):
    """--summary has jobs by state and user, and GPUs by type, and no row of a job."""
    output = show(published(), "status", "--summary")
    assert "Live jobs: 1 running, 1 held" in output
    assert re.search(r"v100 +1 +4 +2 +2", output)
    assert re.search(r"ada +2 +1 +1", output)
    assert "resnet" not in output


@pytest.mark.parametrize("options", [["--watch"], ["--watch", "--json"], ["--summary", "--json"], ["--me", "--user=x"]])
def test_options_of_status_that_exclude_one_another(tmp_path, run, options):
    """--watch needs a terminal, --json prints one whole document, --me is a --user."""
    publish(tmp_path, published())
    assert run("status", *options, "--shared", tmp_path).exit_code == 2


def test_explain_bounds_its_list_of_nodes(show):
    """Hundreds of free nodes, and the nodes of a wide job, are folded into host lists."""
    nodes = tuple(NodeStatus(f"n{i:03d}", "v100", 8, 4, accepts=True) for i in range(512))
    wide = job(nodes={f"n{i:03d}": 8 for i in range(128)}, max_gpus=1024)
    status = published(nodes=nodes, jobs=(wide, waiting()))
    assert "2048 free now (n[000-511]:4)" in show(status, "explain", "bert")
    assert "runs on 1024 GPUs (n[000-127]:8)" in show(status, "explain", "resnet")
    odd = tuple(NodeStatus(f"n{i:03d}", "v100", 8, 4, accepts=True) for i in range(0, 512, 2))
    assert len(show(published(nodes=odd), "explain", "bert")) < 600


def test_explain_names_near_misses(tmp_path, run):
    """A mistyped name is answered with the name of the job, and its id."""
    publish(tmp_path, published())
    assert "did you mean 'resnet' (12)?" in run("explain", "resnte", "--shared", tmp_path).stderr


def test_status_as_json_is_what_was_published(show):
    """--json gives every field, and whether the file is stale."""
    status = published()
    data = json.loads(show(status, "status", "--json"))
    assert data["stale"] is False
    told = dataclasses.asdict(dataclasses.replace(status, seen="all", jobs=(), finished=()))
    told |= {name: [job_fields(job) for job in getattr(status, name)] for name in ("jobs", "finished")}
    expected = json.loads(json.dumps(told))
    for node in data["nodes"]:
        node["jobs"] = {}
    assert {name: data[name] for name in expected} == expected


def test_the_shared_directory_has_an_order_of_sources(tmp_path, run, monkeypatch):
    """--shared wins over --config, --config over the environment, the environment over the default file."""
    directories = {name: tmp_path / name for name in ("option", "given", "variable", "default")}
    for name, directory in directories.items():
        directory.mkdir()
        publish(directory, published(cluster=name))
    for name in ("given", "default"):
        (tmp_path / f"{name}.toml").write_text(f'[paths]\nshared = "{directories[name]}"\n')
    monkeypatch.setenv("METASCHED_CONFIG", str(tmp_path / "default.toml"))

    def cluster(*argv):
        return json.loads(run(*argv, "--json").output)["cluster"]

    given = ("--config", tmp_path / "given.toml", "status")
    assert cluster("status") == "default"
    monkeypatch.setenv("METASCHED_SHARED", str(directories["variable"]))
    assert cluster("status") == "variable"
    assert cluster(*given) == "given"
    assert cluster(*given, "--shared", directories["option"]) == "option"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "cannot be read"),
        ("[paths", "is not TOML"),
        ("[paths]\n", "has no [paths] shared"),
        ("paths = 3\n", "has no [paths] shared"),
        ("[paths]\nshared = 3\n", "is not a string"),
    ],
)
def test_an_unusable_configuration_is_one_clear_message(tmp_path, run, text, expected):
    """The message names the file, the fault and the option to pass; exit code 1, no traceback."""
    config = tmp_path / "metasched.toml"
    if text is not None:
        config.write_text(text)
    result = run("--config", config, "status")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {config}: ")
    assert expected in result.stderr
    assert "--shared DIR" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("content", [None, "{", "[]", '{"format": 99}', '{"format": 1, "nodes": [[]]}', "[" * 100_000])
def test_an_unreadable_status_is_one_clear_message(tmp_path, run, content):
    """A missing, torn or foreign status file is an error that names it."""
    if content is not None:
        (tmp_path / "status.json").write_text(content)
    result = run("status", "--shared", tmp_path)
    assert result.exit_code == 1
    assert str(tmp_path / "status.json") in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_unknown_fields_of_a_newer_daemon_are_ignored(tmp_path, run):
    """A missing required field is one clear message."""
    publish(tmp_path, published())
    path, jobs_path = tmp_path / "status.json", tmp_path / "private" / "all.json"
    data, live = json.loads(path.read_text()), json.loads(jobs_path.read_text())
    for record in (data, live, live["jobs"][0], data["nodes"][0]):
        record["mood"] = "good"
    path.write_text(json.dumps(data))
    jobs_path.write_text(json.dumps(live))
    assert "resnet" in run("status", "--shared", tmp_path).output
    del live["jobs"][0]["uid"]
    jobs_path.write_text(json.dumps(live))
    result = run("status", "--shared", tmp_path)
    assert (result.exit_code, "use the same version" in result.stderr) == (1, True)


def test_a_status_of_the_format_before_names_the_version(tmp_path, run):
    """The files of an older daemon, which had every job's loss for everybody, are not half read."""
    publish(tmp_path, published())
    path = tmp_path / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 3}))
    result = run("status", "--shared", tmp_path)
    assert (result.exit_code, "use the same version" in result.stderr) == (1, True)


@pytest.mark.parametrize("command", [["status"], ["explain", "12"]])
def test_characters_outside_the_terminals_encoding_are_escaped(tmp_path, command):
    """Users' names need not fit the encoding."""
    publish(tmp_path, published(jobs=(job(reason="☃ waits"),)))
    result = CliRunner(charset="iso-8859-1").invoke(main, [*command, "--shared", str(tmp_path)])
    assert (result.exit_code, "\\u2603 waits" in result.output) == (0, True)


def test_a_full_disk_behind_the_output_is_one_clear_message(tmp_path, monkeypatch, capsys):
    """The message is printed once."""
    publish(tmp_path, published())
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        with pytest.raises(SystemExit) as ended:
            main(["status", "--shared", str(tmp_path)])
    assert ended.value.code == 1
    assert capsys.readouterr().err == "Error: the output cannot be written: No space left on device\n"


def test_a_mistyped_command_has_a_suggestion(run):
    """The near miss is named in both groups; a word that is like no command has none."""
    assert "did you mean status" in run("stauts").stderr
    assert "did you mean events" in run("db", "--state", "/nowhere", "evnets").stderr
    assert "did you mean" not in run("xyzzy").stderr


def test_wrong_usage_exits_with_2(run):
    """An unknown command and an unknown option are usage errors."""
    assert run("stauts").exit_code == 2
    assert run("status", "--nope").exit_code == 2
    assert run("explain").exit_code == 2


@pytest.mark.parametrize("asked", ["12", "0123456789abcdef", "resnet"])
def test_explain_finds_a_job_by_slurm_job_id_uid_and_name(show, asked):
    """All three mean the same job."""
    output = show(published(), "explain", asked)
    assert output.startswith("Job 12 (resnet, of ada) runs on 2 GPUs (n1:2) since 1 min")


def test_explain_says_why_a_job_runs(show):
    """The sentences have the policy's reason, the progress and the history."""
    output = show(published(), "explain", "12")
    assert "Why: 1st of 2 in line." in output
    assert "Policy las decides again in" in output
    assert "waited 20 s, ran 1 min 20 s in 2 runs, preempted 1 time" in output
    assert "It has received 160 GPU-seconds." in output
    assert "World sizes of its runs: 4 → 2." in output
    assert "120 of 400 steps, 2 steps/s, about 2 min 20 s left, loss 0.25" in output


def test_progress_of_a_job_whose_batch_adapts(show):
    """Whole steps at the first batch are shown; the rest takes less time where a step counts for several of them."""
    adapts = published(jobs=(job(progress_steps=120.7, step_gain=2.0),))
    assert "120/400 (30%), 1 min 10 s left" in show(adapts, "status")
    assert "120 of 400 steps, 2 steps/s, about 1 min 10 s left" in show(adapts, "explain", "12")


def test_explain_says_what_a_job_waits_for(show):
    """The sentences have the needed GPUs, the free GPUs of accepting nodes, and the jobs that hold the others."""
    output = show(published(), "explain", "bert")
    assert "waits, held until a round starts it" in output
    assert "It needs 4 GPUs; 2 free now (n1:2); the others are held by job 12 (2)." in output


def test_explain_says_that_a_tag_is_wrong(show):
    """The sentences have the error and the fix."""
    output = show(published(jobs=(waiting(error="there is no key 'x'"),)), "explain", "13")
    assert "Its tag cannot be used: there is no key 'x'. Cancel it and submit it again" in output


@pytest.mark.parametrize("reason", ["its begin time (--begin) is still to come", "its owner submitted it with --hold"])
def test_explain_omits_free_gpus_for_a_blocked_job(show, reason):
    """A blocked job waits neither for a round nor for GPUs."""
    output = show(published(jobs=(waiting(blocked=True, reason=reason),)), "explain", "13")
    assert output.startswith(f"Job 13 (bert, of ada) waits.\nWhy: {reason}.\n")
    assert "free now" not in output


def test_the_size_of_a_job_with_a_wrong_tag_is_not_known():
    """The job is not shown as a CPU-only job."""
    assert formatting.gpus_text(waiting(gpus=0, min_gpus=0, max_gpus=0)) == "cpu"
    assert formatting.gpus_text(waiting(gpus=0, min_gpus=0, max_gpus=0, error="there is no key 'x'")) == "?"


def test_explain_reports_a_stopped_daemon_and_an_unreachable_slurm(show):
    """Both are reasons to wait."""
    assert "no round is decided until it is back" in show(published(published=time.time() - 600), "explain", "13")
    assert "cannot reach Slurm (down)" in show(published(slurm="down"), "explain", "13")


def test_explain_prefers_a_live_job(show):
    """Slurm reuses ids: the live job is meant."""
    old = job(uid="e" * 16, name="old", finished=NOW - 5, status="completed")
    assert "(resnet," in show(published(finished=(old,)), "explain", "12")
    assert "ended" in show(published(finished=(old,)), "explain", "old")


def test_explain_as_json(show):
    """The document has the job's fields and the sentences."""
    data = json.loads(show(published(), "explain", "12", "--json"))
    assert data["job"]["uid"] == "0123456789abcdef"
    assert data["words"][0].startswith("Job 12")


def test_explain_adds_the_records_of_a_readable_database(show, tmp_path):
    """Runs, decisions, actions and events follow the sentences."""
    uid = "0123456789abcdef"
    with Store.open(tmp_path / "state" / DATABASE) as store:
        store.add_job(JobRecord(uid=uid, slurm_job_id="12", name="resnet", user="ada", submitted=NOW - 100))
        store.event("arrived", "hello \x1b[1m", uid, at=NOW)
        store.end_action(store.begin_action(uid, "start", {}, 1, NOW), "ok", 0.01)
    output = show(published(), "explain", "12", "--state", tmp_path / "state")
    assert r"hello \x1b[1m" in output
    assert "start" in output
    assert "10 ms" in output
    data = json.loads(show(published(), "explain", "12", "--state", tmp_path / "state", "--json"))
    assert [event["kind"] for event in data["events"]] == ["arrived"]


def test_explain_refuses_unknown_and_ambiguous_jobs(tmp_path, run):
    """An unknown job, two jobs of one name, and an array are errors that say how to ask."""
    publish(tmp_path, published(jobs=(job(), waiting(name="resnet"))))
    unknown = run("explain", "99", "--shared", tmp_path)
    assert (unknown.exit_code, "knows no job '99'" in unknown.stderr) == (1, True)
    several = run("explain", "resnet", "--shared", tmp_path)
    assert (several.exit_code, "12 and 13" in several.stderr) == (1, True)
    publish(tmp_path, published(jobs=(job(slurm_job_id="27_0"), waiting(slurm_job_id="27_1"))))
    array = run("explain", "27", "--shared", tmp_path)
    assert (array.exit_code, "ask by task, one of 27_0 and 27_1" in array.stderr) == (1, True)


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """Installs a fake sbatch that records its arguments, with given outputs and exit code."""
    record = tmp_path / "arguments.json"

    def make(*, stdout="77;dev", stderr="", code=0):
        program = tmp_path / "bin" / "sbatch"
        write_program(
            program,
            f"#!{sys.executable}\nimport json, sys\n"
            f"json.dump(sys.argv[1:], open({str(record)!r}, 'w'))\n"
            f"sys.stderr.write({stderr!r})\nprint({stdout!r})\nsys.exit({code})\n",
        )
        monkeypatch.setenv("PATH", str(program.parent))
        return lambda: json.loads(record.read_text()) if record.exists() else None

    return make


def test_submit_hands_sbatch_the_tag(run, sbatch):
    """The options become the tag, the words after `--` are unchanged, and the id alone is printed."""
    arguments = sbatch()
    result = run(
        "submit", "--min-gpus", 1, "--max-gpus", 8, "--weight", 0.5, "--", "-N2", "--gres=gpu:4", "job.sh", "-x"
    )
    assert (result.exit_code, result.stdout) == (0, "77\n")
    comment = "--comment=metasched min_gpus=1 max_gpus=8 weight=0.5"
    assert arguments() == ["--parsable", comment, "-N2", "--gres=gpu:4", "job.sh", "-x"]


def test_submit_as_json(run, sbatch):
    """The document has the id and the comment."""
    sbatch()
    data = json.loads(run("submit", "--json", "--preempt", "no", "--", "job.sh").stdout)
    assert data == {"schema": "metasched/submit/1", "job": "77", "comment": "metasched preempt=no"}


def test_submit_checks_the_tag_first(run, sbatch):
    """A tag that the daemon would refuse never reaches Slurm."""
    arguments = sbatch()
    result = run("submit", "--min-gpus", 4, "--max-gpus", 2, "--", "job.sh")
    assert result.exit_code == 1
    assert "min_gpus=4" in result.stderr
    assert arguments() is None


def test_submit_refuses_a_second_comment(run, sbatch):
    """The job's comment is the tag."""
    arguments = sbatch()
    assert run("submit", "--", "--comment=mine", "job.sh").exit_code == 2
    assert arguments() is None


@pytest.mark.parametrize(
    "options", [(), ("-J", "x"), ("-Jx", "--exclusive"), ("-HJ", "x"), ("-o", "job.sh", "--time=1"), ("-Q", "--")]
)
def test_submit_leaves_the_scripts_arguments_alone(run, sbatch, options):
    """The words after the script are not sbatch's."""
    arguments = sbatch()
    assert run("submit", "--", *options, "job.sh", "--comment", "mine").exit_code == 0
    assert arguments()[-3:] == ["job.sh", "--comment", "mine"]


@pytest.mark.parametrize("options", [(), ("-J", "x"), ("-o", "a.log"), ("--output", "a.log"), ("-HW",), ("--wait",)])
def test_submit_sees_a_comment_before_the_script(run, sbatch, tmp_path, monkeypatch, options):
    """--comment is refused, even where a file has the name of another option's value."""
    arguments = sbatch()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.log").touch()
    assert run("submit", "--", *options, "--comment", "mine", "job.sh").exit_code == 2
    assert arguments() is None


def test_submit_passes_on_slurms_message(run, sbatch):
    """The error has Slurm's words, with control characters escaped."""
    sbatch(stderr="sbatch: error: invalid\x1b[1m partition", code=1)
    result = run("submit", "--", "job.sh")
    assert result.exit_code == 1
    assert r"invalid\x1b[1m partition" in result.stderr


def test_submit_shows_all_lines_of_a_refusal(run, sbatch):
    """A site's job_submit plugin may explain at length; the message is sbatch's own, line by line and whole."""
    lines = ["sbatch: error: " + "your project has no hours left, " * 30, "sbatch: error: Batch job submission failed"]
    sbatch(stderr="\n".join(lines) + "\n", code=1)
    result = run("submit", "--", "job.sh")
    assert (result.exit_code, result.stderr) == (1, "\n".join([f"Error: {lines[0]}", lines[1], ""]))


def test_submit_names_the_exit_status_of_a_silent_sbatch(run, sbatch):
    """A refusal without any word has a message, too."""
    sbatch(code=3)
    assert run("submit", "--", "job.sh").stderr == "Error: sbatch: exit status 3\n"


def test_submit_without_slurm(run, tmp_path, monkeypatch):
    """Without sbatch on PATH the message names the cause."""
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run("submit", "--", "job.sh")
    assert result.exit_code == 1
    assert "is Slurm installed here" in result.stderr


def test_submit_has_an_option_for_every_key():
    """Every key of the tag is an option of submit."""
    assert set(submit.HELP) == set(KEYS)
    assert parse_tag("metasched") is not None


def test_policies_lists_parameters_with_defaults(run):
    """Every installed policy is listed with each parameter's default and meaning."""
    listed = {policy["name"]: policy for policy in json.loads(run("policies", "--json").output)["rows"]}
    assert {"fifo", "las"} <= set(listed)
    assert listed["las"]["parameters"]["promote_knob"]["default"] == 8.0
    assert all(p["meaning"] for policy in listed.values() for p in policy["parameters"].values())
    assert "promote_knob" in run("policies").output


def test_devcluster_refuses_malformed_and_contradictory_groups(run, tmp_path):
    """A malformed group, and a group with --nodes, are usage errors; the message for a bad GPU type has the rule."""
    assert "2x4xv100" in run("devcluster", "up", "--type", "many").stderr
    assert "a letter, then" in run("devcluster", "up", "--type", "1x4x1080").stderr
    result = run("devcluster", "up", "--base", tmp_path / "c", "--type", "1x4xv100", "--nodes", 2)
    assert result.exit_code == 2
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("verb", ["down", "status"])
def test_devcluster_reports_a_missing_cluster(run, tmp_path, verb):
    """The message names the directory."""
    result = run("devcluster", verb, "--base", tmp_path)
    assert result.exit_code == 1
    assert str(tmp_path) in result.stderr


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_the_daemon_needs_a_configuration(run, tmp_path, options):
    """The message names the file that cannot be read."""
    result = run("--config", tmp_path / "none.toml", "daemon", *options)
    assert result.exit_code == 1
    assert str(tmp_path / "none.toml") in result.stderr


def test_help_imports_neither_tables_nor_the_decoder_of_the_status():
    """The help of a command that reads no status needs neither."""
    script = (
        "import sys; from metasched.cli import main\n"
        "try: main(['submit', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'rich', 'metasched.shared_dir.published_status'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "sbatch" in done.stdout


@pytest.mark.parametrize("command", [["status"], ["explain", "resnet"]])
def test_status_and_explain_import_nothing_heavy(tmp_path, command):
    """The commands import neither torch nor the solver, the store or the configuration's checks."""
    publish(tmp_path, published())
    script = (
        "import sys; from metasched.cli import main\n"
        "try: main([*sys.argv[2:], '--shared', sys.argv[1]])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'scipy', 'numpy', 'pydantic', 'sqlite_utils', 'apscheduler', "
        "'sqlite3', 'metasched.store'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path, *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ},
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "resnet" in done.stdout


def test_a_job_in_an_unknown_state_is_explained():
    """A newer daemon may publish states that this version does not know."""
    assert "is dreaming" in job_explanation.explanation(job(status="dreaming"), published(), NOW)[0]


def test_explain_names_the_co_runner_renewals_and_deadline():
    """A co-runner runs at the same time or in turns; the deadline has the time left."""
    lines = job_explanation.explanation(job(co_runner="14", renewals=3, slo_seconds=7300.0), published(), NOW)
    assert "Job 14 runs on the same GPUs." in lines
    assert "It kept its allocation through 3 rounds: nothing was restarted." in lines
    assert "It should be done 2 h 1 min after its submission, which is 2 h from now." in lines
    turns = job_explanation.explanation(job(co_runner="14", time_slicing=True, slo_seconds=40.0), published(), NOW)
    assert "It takes turns with job 14 on the same GPUs: one is suspended while the other runs." in turns
    assert any("which is 1 min ago" in line for line in turns)
    assert not any("kept its allocation" in line for line in job_explanation.explanation(job(), published(), NOW))


def test_status_says_whether_two_jobs_can_share_a_gpu(show):
    """The reason against sharing is shown; a sharing job shows its co-runner and its number of renewed rounds."""
    told = show(published(sharing_note="gres.conf names no shards"), "status")
    assert "No two jobs share a GPU: gres.conf names no shards" in told
    told = show(published(sharing=True, jobs=(job(co_runner="14", renewals=2),)), "status")
    for expected in ("Two jobs can share a GPU", "n1:2 v100 with 14", "2 (renewed 2 rounds)"):
        assert expected in told


def test_a_dry_run_with_nothing_to_do_says_so(run, monkeypatch):
    """An empty output would look like a fault."""
    monkeypatch.setattr(dry_run, "planned_actions", lambda _: [])
    assert run("daemon", "--dry-run").output == "nothing to do: no job is here\n"


def test_status_has_columns_for_batches_where_a_job_has_one(show):
    """The batch that is wanted stands behind an arrow; other clusters' tables do not change."""
    assert "BATCH" not in show(published(), "status")
    tuned = job(batch=BATCH, reason_code="goodput_speedup", reason_facts={"speedup": 1.321})
    output = show(published(jobs=(tuned, waiting())), "status")
    assert ("BATCH" in output, "SPEED-UP" in output) == (True, True)
    assert "256 → 512, 87%" in output
    assert " 1.32 " in output


def test_status_shows_advice_on_the_number_of_nodes(show):
    """A line for each GPU type, where the policy gives advice."""
    assert "would suit" not in show(published(), "status")
    more, right = AdviceStatus("v100", 4, 7, 0.93, 0.51), AdviceStatus("k80", 1, 1, 0.6, 0.6)
    output = show(published(advice=(more, right)), "status")
    assert "v100: utility 93% on 4 nodes; 7 nodes would suit the jobs (51%)" in output
    assert "k80: utility 60% on 1 node; the number of nodes suits the jobs" in output


def test_planned_runs_are_told(show):
    """A waiting job's plan has a clock time, a running job's plan has what is left; a plan that is over is not told."""
    waits, runs = waiting(planned=PlannedStatus(NOW + 60.0, 2400.0)), job(planned=PlannedStatus(NOW - 60.0, 300.0))
    at = time.strftime("%H:%M", time.localtime(NOW + 60.0))
    assert f"It is planned for {at}, for 40 min." in job_explanation.explanation(waits, published(), NOW)
    assert "It is planned to run for 4 min." in job_explanation.explanation(runs, published(), NOW)
    assert not any("planned" in line for line in job_explanation.explanation(runs, published(), NOW + 300.0))
    soon = waiting(planned=PlannedStatus(time.time() + 60.0, 2400.0))
    assert "for 40 min" in show(published(jobs=(soon,)), "status")
    assert "PLANNED" not in show(published(), "status")


def test_explain_tells_the_batch_and_why_another_one_waits():
    """An obstacle stands alone where no batch is wanted."""
    lines = job_explanation.explanation(job(batch=BATCH), published(), NOW)
    assert (
        "Its batch is 256 samples (64 on each GPU in 2 micro-batches), with 87% of the efficiency of its first batch, "
        "64 (gradient noise scale 1.2e+03 samples)." in lines
    )
    assert "It is to have a batch of 512 samples (256 on each GPU); its trainer has not started yet." in lines
    alone = dataclasses.replace(BATCH, present=None, wanted=None, note="its script does not consent")
    lines = job_explanation.explanation(job(batch=alone), published(), NOW)
    assert "Its batch: its script does not consent." in lines
    assert not any("samples" in line for line in lines)


def test_shells_complete_policies_and_own_jobs(tmp_path, monkeypatch):
    """Ids are offered at once, names from their first letter, other users' jobs and errors never."""
    monkeypatch.setenv("METASCHED_SHARED", str(tmp_path))
    monkeypatch.setattr(caller, "own_name", lambda: "ada")

    def offered(words, incomplete):
        found = ShellComplete(main, {}, "metasched", "_METASCHED_COMPLETE").get_completions(words, incomplete)
        return [item.value for item in found]

    assert offered(["explain"], "") == []
    publish(tmp_path, published(jobs=(job(), waiting(user="bob"))))
    assert offered(["explain"], "") == ["12"]
    assert offered(["explain"], "res") == ["resnet"]
    assert offered(["explain"], "be") == []
    assert offered(["status", "--state"], "r") == ["running"]
    assert offered(["compare", "--policy"], "gandiva_") == ["gandiva_apps", "gandiva_fair"]
