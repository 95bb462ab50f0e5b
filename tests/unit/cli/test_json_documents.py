import json
import time

import click
import jsonschema
import pytest
from click.testing import CliRunner

from metasched.cli import daemon, json_documents, json_output, main
from metasched.configuration.file_names import DATABASE
from metasched.core.model import Placement
from metasched.core.reasons import Code, Reason
from metasched.daemon import dry_run
from metasched.shared_dir.published_status import (
    BatchStatus,
    JobStatus,
    NodeStatus,
    PlannedStatus,
    PlanStatus,
    Status,
    publish,
)
from metasched.store import EndCause, JobRecord, Store

NOW = time.time()


def commands(group, words=()):
    """Every command with --json, by its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from commands(found, (*words, name))
        elif any("--json" in option.opts for option in found.params):
            yield " ".join([*words, name])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Options of a site with a published status and a database of one finished job."""
    base = tmp_path_factory.mktemp("site")
    job = JobStatus(
        uid="a",
        slurm_job_id="1",
        name="resnet",
        user="ada",
        account=None,
        status="running",
        gpus=2,
        min_gpus=1,
        max_gpus=4,
        preempt="checkpoint",
        reason="first",
        nodes={"n1": 2},
        gpu_type="v100",
        submitted=NOW,
        run_started=NOW,
        runs=1,
        preemptions=0,
        attained_service=0.0,
        ran_seconds=0.0,
        waited_seconds=0.0,
        progress_steps=None,
        total_steps=None,
        steps_per_second=None,
        loss=None,
        world_sizes=(2,),
        batch=BatchStatus(adaptive=True, present=PlanStatus(1, 2, 3)),
        planned=PlannedStatus(NOW, 3.0),
    )
    status = Status(
        NOW, 2.0, "dev", "h", 1, "las", 1, NOW, None, "ok", (NodeStatus("n1", None, 4, 2, accepts=True),), (job,)
    )
    publish(base, status)
    place = Placement(("n1",), 2, "v100")
    with Store.open(base / DATABASE) as store:
        store.add_job(JobRecord(uid="a", slurm_job_id="1", name="resnet", user="ada", submitted=NOW - 90))
        store.release("a", 1, place, NOW - 80)
        store.run_started("a", 1, NOW - 80, place)
        store.run_ended("a", 1, NOW - 20, EndCause.FINISHED)
        store.finish_job("a", NOW - 20, "COMPLETED", 0)
        store.event("finished", "well", "a", at=NOW)
        store.end_action(store.begin_action("a", "start", {}, 1, NOW), "ok", 0.01)
    return base


def test_every_document_has_a_schema():
    """A command with --json has an entry, and each entry is a valid schema that names its document."""
    assert set(json_documents.DOCUMENTS) == set(commands(main))
    for command in json_documents.DOCUMENTS:
        schema = json_documents.schema(command)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["properties"]["schema"]["const"] == f"metasched/{command.replace(' ', '/')}/1"


@pytest.mark.parametrize(
    "words",
    [
        "status --shared {}",
        "explain resnet --shared {} --state {}",
        "history --state {}",
        "health --shared {}",
        "policies",
        "db --state {} path",
        "db --state {} sizes",
        "db --state {} check",
        "db --state {} events",
        "db --state {} runs a",
        "db --state {} --shared {} prune --before 5",
    ],
)
def test_documents_follow_their_schemas(site, words):
    """What a command prints is valid, and has no property that the schema does not name."""
    argv = words.replace("{}", str(site)).split()
    result = CliRunner().invoke(main, [*argv, "--json"])
    found = json.loads(result.stdout)
    name = next(
        command for command in json_documents.DOCUMENTS if found["schema"] == json_output.schema_name(command, 1)
    )
    schema = json_documents.schema(name)
    jsonschema.validate(found, schema)
    assert found.keys() <= schema["properties"].keys()


def test_a_dry_run_as_json(monkeypatch):
    """Each action has its kind, its job, its reason and its place; the daemon itself prints no document."""
    place = Placement(("n1",), 2, "v100")
    planned = dry_run.PlannedAction("start", "a", "1", "start 1 on n1", Reason.of(Code.TEXT, text="first"), place)
    monkeypatch.setattr(dry_run, "planned_actions", lambda _: [planned])
    found = json.loads(CliRunner().invoke(main, ["daemon", "--dry-run", "--json"]).output)
    jsonschema.validate(found, json_documents.schema("daemon"))
    assert found["rows"][0]["placement"]["nodes"] == ["n1"]
    assert CliRunner().invoke(daemon.command, ["--json"]).exit_code == 2


def test_schema_prints_and_lists():
    """Without a command the documents are listed; an unknown one has a suggestion."""
    call = CliRunner().invoke
    assert json.loads(call(main, ["schema", "db", "events"]).output)["title"] == "metasched db events --json"
    assert "db events" in call(main, ["schema"]).output.splitlines()
    wrong = call(main, ["schema", "db", "evnts"])
    assert (wrong.exit_code, "did you mean db events" in wrong.stderr) == (2, True)
