import os
import pwd
import tempfile
from pathlib import Path

import pytest

from metasched.api import Cluster
from metasched.configuration.command_paths import NoDirectoryError
from metasched.configuration.file_names import DATABASE
from metasched.core.model import Placement
from metasched.presentation.job_lookup import JobNotFoundError
from metasched.presentation.job_selection import UnknownStateError
from metasched.shared_dir.published_status import PRIVATE_DIRECTORY, StatusError, publish
from metasched.store import EndCause, JobRecord, MissingStoreError, Store
from tests.unit.statuses import NOW, job, published, waiting

PLACE = Placement(("n1",), 2, "v100")


@pytest.fixture(autouse=True)
def _no_site(monkeypatch):
    """Remove the machine's own configuration from the environment."""
    for name in ("METASCHED_SHARED", "METASCHED_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def shared(tmp_path):
    """A shared directory with a running and a waiting job, and one that has ended."""
    ended = job(uid="e" * 16, slurm_job_id="9", name="old", status="failed", finished=NOW - 5)
    publish(tmp_path, published(finished=(ended,)))
    return tmp_path


@pytest.fixture
def state(tmp_path):
    """A state directory whose database has one ended job with two runs."""
    directory = tmp_path / "state"
    directory.mkdir()
    with Store.open(directory / DATABASE) as store:
        store.add_job(JobRecord(uid="a" * 16, slurm_job_id="12", name="resnet", user="ada", submitted=NOW - 600))
        for run, (begin, cause) in enumerate([(NOW - 500, EndCause.PREEMPTED), (NOW - 300, EndCause.FINISHED)], 1):
            store.release("a" * 16, run, PLACE, begin)
            store.run_started("a" * 16, run, begin, PLACE)
            store.run_ended("a" * 16, run, begin + 100, cause)
        store.finish_job("a" * 16, NOW - 200, "COMPLETED", 0)
        store.event("preempted", "for <b>others</b>", "a" * 16, at=NOW - 400)
    return directory


def test_jobs_are_selected_as_by_the_command_line(shared):
    """User, account and state select; ended jobs follow where they are asked for."""
    cluster = Cluster.connect(shared=shared)
    assert [one.name for one in cluster.jobs()] == ["resnet", "bert"]
    assert [one.name for one in cluster.jobs(states=["waiting"])] == ["bert"]
    assert [one.name for one in cluster.jobs(ended=True)] == ["resnet", "bert", "old"]
    assert list(cluster.jobs(user="nobody")) == []
    with pytest.raises(UnknownStateError, match="did you mean running"):
        cluster.jobs(states=["runing"])


def test_a_job_is_found_by_id_and_by_name(shared):
    """Numbers are Slurm job ids; a near miss is named."""
    cluster = Cluster.connect(shared=shared)
    assert cluster.job(12).uid == cluster.job("resnet").uid
    assert "waits for 4 GPUs" in " ".join(cluster.explain("bert"))
    with pytest.raises(JobNotFoundError, match="did you mean 'resnet'"):
        cluster.job("resnett")


def test_other_users_see_what_is_public(shared):
    """A job's speed and loss are for its owner and admins, as far as the files' permissions go."""
    assert Cluster.connect(shared=shared).job(12).loss == 0.25
    for path in (shared / PRIVATE_DIRECTORY).iterdir():
        path.unlink()  # as for a user who may not read them
    assert Cluster.connect(shared=shared).job(12).loss is None


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_permissions_decide_for_another_user():
    """Under another Unix user, the API reads the same files and sees less."""
    with tempfile.TemporaryDirectory() as directory:  # pytest's own directories are closed to other users
        shared = Path(directory)
        shared.chmod(0o755)
        publish(shared, published())
        assert Cluster.connect(shared=shared).job(12).loss == 0.25
        assert _as_nobody(lambda: repr(Cluster.connect(shared=shared).job(12).loss)) == "None"


def _as_nobody(call):
    """Return what a call returns in a process of the user nobody."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setuid(pwd.getpwnam("nobody").pw_uid)
            os.write(writable, call().encode())
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return found


def test_a_jobs_past_is_read_from_the_database(shared, state):
    """Runs, decisions, throughput and events are tables, the oldest first, with reasons in words."""
    cluster = Cluster.connect(shared=shared, state=state)
    assert [run.cause for run in cluster.runs("resnet")] == ["preempted", "finished"]
    assert [run.run for run in cluster.runs(limit=1)] == [2]
    assert [one.end_state for one in cluster.ended_jobs()] == ["COMPLETED"]
    assert cluster.events("resnet").to_dicts()[0]["text"] == "for <b>others</b>"
    assert "<b>" not in cluster.events()._repr_html_()
    assert [len(found) for found in (cluster.decisions("12"), cluster.throughput(12), cluster.rounds())] == [0, 0, 0]
    (usage,) = cluster.usage()
    assert (usage.group, usage.preemptions) == ("ada", 1)
    assert list(cluster.runs().to_pandas()["cause"]) == ["preempted", "finished"]


def test_without_a_database_the_error_names_it(shared, tmp_path):
    """On a login node the published status works; the history has a typed error."""
    cluster = Cluster.connect(shared=shared, state=tmp_path / "none")
    assert cluster.nodes()[0].name == "n1"
    with pytest.raises(MissingStoreError, match="none"):
        cluster.runs()
    assert cluster.explain("resnet")


def test_connecting_to_nothing_names_what_to_give(tmp_path, monkeypatch):
    """No directory, and a directory without a daemon, are different errors."""
    monkeypatch.setenv("METASCHED_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(NoDirectoryError, match="shared=DIR"):
        Cluster.connect()
    with pytest.raises(StatusError, match="is the daemon running"):
        Cluster.connect(shared=tmp_path)


def test_waiting_jobs_of_hostile_names_stay_text(tmp_path):
    """A notebook shows job names escaped."""
    publish(tmp_path, published(jobs=(waiting(name="<img src=x onerror=alert(1)>"),)))
    assert "<img" not in Cluster.connect(shared=tmp_path).jobs()._repr_html_()
