import os
import sys
import tempfile
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from metasched.slurm.client_factory import make_client
from metasched.slurm.errors import SlurmTimeoutError, SlurmUnavailableError
from metasched.slurm.pyslurm_pipe import PyslurmPipe, request

ROOT = Path(__file__).parents[3]
# What the child needs of pyslurm, telling a file what it was asked; the real one is for the tests on Slurm.
STAND_IN = """
import os, sys, time
print("libslurm prints what it likes", flush=True)
__version__ = "25.11.2"
if os.environ.get("BREAK") == "import":
    sys.exit("fatal: no configuration")

class RPCError(Exception):
    errno = 2017

class JobSubmitDescription:
    def __init__(self, **fields):
        self.fields = fields

class Job:
    def __init__(self, job):
        self.job = job

    def _do(self, what):
        if self.job == 404:
            raise RPCError("Invalid job id specified")
        if self.job == 500:
            os._exit(1)
        if self.job == 504:
            time.sleep(60)
        with open(os.environ["ASKED"], "a") as file:
            file.write(f"{what} {self.job}\\n")

    def hold(self): self._do("hold")
    def release(self): self._do("release")
    def suspend(self): self._do("suspend")
    def unsuspend(self): self._do("unsuspend")
    def requeue(self, hold): self._do(f"requeue hold={hold}")
    def modify(self, changes): self._do(f"modify {changes.fields}")

class slurmctld:
    class Config:
        version = "25.11.7"

        @classmethod
        def load(cls):
            return cls()

def slurm_init(path):
    pass
"""


class Scontrol:
    """A fake of the pipe to scontrol."""

    def __init__(self):
        self.asked = []

    def command(self, words, timeout):
        del timeout
        self.asked.append(words)
        return ""

    def close(self):
        pass


@pytest.fixture
def env(tmp_path):
    (tmp_path / "pyslurm.py").write_text(STAND_IN)
    return {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        "ASKED": str(tmp_path / "asked"),
    }


@pytest.fixture
def pipe(env):
    made = PyslurmPipe(env, Scontrol())
    yield made
    made.close()


def asked(env):
    return Path(env["ASKED"]).read_text().splitlines()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("hold", "7"), {"verb": "hold", "job": 7}),
        (("requeuehold", "7"), {"verb": "requeuehold", "job": 7}),
        (
            ("update", "JobId=7", "AdminComment=metasched:1", "Priority=0", "Requeue=1"),
            {
                "verb": "update",
                "job": 7,
                "fields": {"admin_comment": "metasched:1", "priority": 0, "is_requeueable": True},
            },
        ),
    ],
)
def test_supported_commands_become_requests_to_pyslurm(words, meant):
    """Words of scontrol become pyslurm's calls."""
    assert request(words) == meant


@pytest.mark.parametrize(
    "words",
    [
        ("hold", "7_3"),
        ("update", "JobId=7_3", "Requeue=1"),
        ("update", "JobId=7", "NumNodes=2-2", "ReqNodeList=n1,n2"),
        ("update", "JobId=7", "AdminComment="),
        ("update", "NodeName=n1", "State=down"),
        ("reconfigure",),
    ],
)
def test_other_commands_are_left_to_scontrol(words, pipe):
    """The library ignores array tasks, sizes and nodes silently."""
    assert request(words) is None
    assert pipe.command(words, 10) == ""


def test_writes_reach_pyslurm_whatever_it_prints(pipe, env):
    """The output of pyslurm itself does not disturb the answers."""
    assert pipe.command(("hold", "7"), 30) == ""
    assert pipe.command(("update", "JobId=7", "AdminComment=metasched:1"), 30) == ""
    assert pipe.command(("resume", "7"), 30) == ""
    assert asked(env) == ["hold 7", "modify {'admin_comment': 'metasched:1'} 7", "unsuspend 7"]


def test_slurms_complaint_is_returned(pipe):
    """The complaint has Slurm's words, as from scontrol."""
    assert pipe.command(("release", "404"), 30) == "Invalid job id specified"


def test_a_child_that_dies_is_an_error_and_the_next_one_works(pipe, env):
    """The C library libslurm ends its process after some errors."""
    with pytest.raises(SlurmUnavailableError, match="pyslurm's process ended during"):
        pipe.command(("hold", "500"), 30)
    assert pipe.command(("hold", "7"), 30) == ""
    assert asked(env) == ["hold 7"]


def test_a_child_that_cannot_be_started_is_an_error_and_leaves_no_file_open(pipe, monkeypatch):
    """The message names pyslurm: the Python that does not start says nothing of it."""
    files = []
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda make=tempfile.TemporaryFile: files.append(make()) or files[0])
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SlurmUnavailableError, match=r"pyslurm.*cannot start /nowhere/python"):
        pipe.command(("hold", "7"), 30)
    assert [file.closed for file in files] == [True]


def test_a_child_that_hangs_is_ended(pipe, env):
    """The C library libslurm holds Python's global lock while a controller does not answer."""
    pipe.start(30)
    with pytest.raises(SlurmTimeoutError, match="504"):
        pipe.command(("hold", "504"), 0.5)
    assert pipe.command(("hold", "7"), 30) == ""
    assert asked(env) == ["hold 7"]


def test_the_versions_are_returned(env):
    """The daemon logs them."""
    client = make_client("pyslurm", 30, env)
    assert client.write_by_pyslurm() == "pyslurm 25.11.2, Slurm 25.11.7"
    client.close()


def test_a_configured_pyslurm_that_does_not_work_is_an_error(env):
    """The message has the child's last line, and the fix."""
    with pytest.raises(SlurmUnavailableError, match=r"client = .pyslurm.*no configuration.*or use auto"):
        make_client("pyslurm", 30, {**env, "BREAK": "import"})


@pytest.mark.parametrize(
    ("installed", "broken", "client"), [(False, False, "cli"), (True, True, "cli"), (True, False, "pyslurm")]
)
def test_auto_uses_pyslurm_where_it_works(env, monkeypatch, installed, broken, client):
    """Elsewhere Slurm's commands write, and the log says why."""
    if installed:
        monkeypatch.syspath_prepend(env["PYTHONPATH"].split(os.pathsep)[0])
    with capture_logs() as lines:
        make_client("auto", 30, {**env, "BREAK": "import"} if broken else env).close()
    (line,) = lines
    assert line["client"] == client
    assert ("reason" in line) == (client == "cli")
