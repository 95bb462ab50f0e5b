"""The job_submit plugin in a real slurmctld."""

import os
import re
import shutil
import subprocess
import time

import pytest

from metasched.core.model import Hold
from metasched.devcluster import DevCluster, NodeGroup, Settings
from metasched.slurm.client import OUT_OF_REACH, Geometry, JobState
from metasched.slurm.command_line_client import CommandLineClient
from tests.slurm.conftest import JOB_SUBMIT, new_base, restore

OWNER = "nobody"
EDITS = {
    "local PARTITIONS = {}": 'local PARTITIONS = {"train"}',
    "local QOS = {}": 'local QOS = {"gang"}',
    "local SHARED = nil": 'local SHARED = "/shared/root"',
}


class Submitter:
    """The cluster with the plugin, edited as an admin would, its client and a script."""

    def __init__(self, cluster):
        self.cluster, self.base = cluster, new_base()
        self.base.chmod(0o777)
        self.client = CommandLineClient(cluster.env)
        self.script = self.base / "job.sh"
        self.script.write_text(
            "#!/bin/bash\nenv > $SLURM_JOB_ID.part && mv $SLURM_JOB_ID.part $SLURM_JOB_ID.env\nsleep 600\n"
        )
        self.edit(EDITS)

    def edit(self, edits):
        """Change the plugin; slurmctld sees it by the file's time, in whole seconds."""
        text = JOB_SUBMIT.read_text()
        for old, new in edits.items():
            assert old in text
            text = text.replace(old, new)
        path = self.cluster.job_submit_lua
        later = int(path.stat().st_mtime) + 2
        path.write_text(text)
        os.utime(path, (later, later))

    def submit(self, *options):
        where = [f"--chdir={self.base}", "--output=/dev/null"]
        return self.job(self.cluster.run("sbatch", "--parsable", *where, *options, str(self.script)).strip())

    def job(self, slurm_job_id):
        return next(job for job in self.client.jobs() if job.slurm_job_id == slurm_job_id)

    def run(self, *argv, user=OWNER):
        return subprocess.run(
            argv,
            env=self.cluster.env,
            user=user,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            cwd=self.base,
        )

    def wait_state(self, slurm_job_id, state):
        deadline = time.monotonic() + 90
        while (job := self.job(slurm_job_id)).state is not state:
            assert time.monotonic() < deadline, job
            time.sleep(0.05)
        return job


@pytest.fixture(scope="module")
def plugged():
    partition = "PartitionName=train Nodes=ALL MaxTime=INFINITE State=UP"
    with DevCluster.up(
        new_base(), Settings((NodeGroup(1),), extra_conf=(partition,)), job_submit=JOB_SUBMIT, owner_pid=os.getpid()
    ) as up:
        yield up


@pytest.fixture
def submitter(plugged):
    made = Submitter(plugged)
    yield made
    made.client.close()
    restore(plugged)
    shutil.rmtree(made.base)


@pytest.fixture
def owned(submitter):
    """A tagged job that belongs to an ordinary user."""
    if os.geteuid() != 0:
        pytest.skip("only root can submit as somebody else")
    return submitter.submit(f"--uid={OWNER}", "--gid=nogroup", "--comment=metasched min_gpus=1", "--gres=gpu:1")


@pytest.mark.parametrize(
    "comment", ["metasched", "  metasched min_gpus=1", "metasched\tweight=0.5", "metasched nonsense"]
)
def test_a_tagged_job_is_held_and_may_be_requeued(submitter, comment):
    """This holds for every tag and every option of the user."""
    job = submitter.submit(f"--comment={comment}", "--no-requeue")
    assert (job.state, job.hold, job.requeue) == (JobState.PENDING, Hold.USER, True)


def test_a_tagged_job_is_stamped_as_it_is_submitted(submitter):
    """The uid is unique and sorts in the order of submission; the daemon need not write AdminComment later."""
    stamps = [submitter.submit("--comment=metasched").admin_comment for _ in range(3)]
    assert all(re.fullmatch("metasched:[0-9a-f]{16}", stamp) for stamp in stamps)
    assert stamps == sorted(set(stamps))
    assert not submitter.submit().admin_comment


@pytest.mark.parametrize("options", [["--partition=train"], ["--partition=main,train"]])
def test_a_partition_that_the_admin_named_is_a_tag(submitter, options):
    """Nothing changes for the user."""
    assert submitter.submit(*options).hold is Hold.USER


@pytest.mark.parametrize("qos", ["gang", "Gang"])
def test_a_qos_that_the_admin_named_is_a_tag(submitter, qos):
    """Names of QOS have no case in Slurm."""
    assert submitter.submit(f"--qos={qos}").hold is Hold.USER


def test_a_job_without_a_qos_has_slurms_default(submitter):
    """The default is its association's DefaultQOS, which this cluster lacks, or `normal`."""
    submitter.edit({"local QOS = {}": 'local QOS = {"Normal"}'})
    assert submitter.submit().hold is Hold.USER


def test_the_default_partition_can_be_the_one_that_the_admin_named(submitter):
    """A job that names no partition goes to the default one."""
    submitter.edit({"local PARTITIONS = {}": 'local PARTITIONS = {"main"}'})
    assert submitter.submit().hold is Hold.USER


@pytest.mark.parametrize("comment", ["", "metascheduled", "not metasched", "Metasched", "metasched=1"])
def test_other_jobs_are_left_alone(submitter, comment):
    """They start at once, with the requeue flag of their submission, and without metasched's variable."""
    job = submitter.submit(f"--comment={comment}", "--no-requeue")
    assert (job.hold, job.requeue) == (Hold.NONE, False)
    submitter.wait_state(job.slurm_job_id, JobState.RUNNING)
    assert "METASCHED_SHARED" not in environment(submitter, job)


def test_a_job_without_a_script_is_left_alone(submitter):
    """Such a job cannot be requeued; a hold would block its user's terminal."""
    done = submitter.run("srun", "--partition=train", "--comment=metasched", "-n1", "true", user=None)
    assert (done.returncode, done.stderr) == (0, "")


def test_sbatch_prints_that_metasched_schedules_the_job(submitter):
    """The message comes at submission."""
    done = submitter.run(
        "sbatch", "--hold", "--output=/dev/null", "--comment=metasched", str(submitter.script), user=None
    )
    assert "metasched schedules this job" in done.stderr


WRONG_TAGS = [
    ("metasched min_gpu=1", "there is no key 'min_gpu'; did you mean min_gpus?"),
    ("metasched colour=red", "there is no key 'colour'; known are min_gpus, max_gpus, "),
    ("metasched weight", "'weight' is not of the form key=value"),
    ("metasched preempt=chekpoint", "'preempt=chekpoint': there is no such value; did you mean checkpoint?"),
    ("metasched trials=1", "there is no such value; known are yes, no"),
    ("metasched min_gpus=1;preempt=no", "'min_gpus=1;preempt=no': write a whole number from 1"),
    ("metasched slo=2h slo=3h", "'slo' is given twice"),
    ("metasched $(id)%s=%n" + "x" * 999, "there is no key '$(id)%s'"),
]


def test_sbatch_tells_of_a_wrong_word_in_the_tag(submitter):
    """A mistyped key shows at submission, not after hours in the queue; a right tag says nothing."""
    argv = ["sbatch", "--hold", "--output=/dev/null"]
    for comment, told in WRONG_TAGS:
        done = submitter.run(*argv, f"--comment={comment}", str(submitter.script), user=None)
        assert (done.returncode, told in done.stderr) == (0, True), done.stderr
    right = "metasched min_gpus=1 max_gpus=8 sizes=1,2,4 preempt=no weight=0.5 tuner=halving,eta=2"
    done = submitter.run(*argv, f"--comment={right}", str(submitter.script), user=None)
    assert (done.returncode, "wrong" in done.stderr) == (0, False)


def test_an_admin_may_have_wrong_tags_refused(submitter):
    """The submission fails with the message; other comments and right tags pass."""
    submitter.edit({**EDITS, 'local WRONG_TAGS = "warn"': 'local WRONG_TAGS = "refuse"'})
    for comment, told in WRONG_TAGS[:1]:
        done = submitter.run("sbatch", f"--comment={comment}", str(submitter.script), user=None)
        assert (done.returncode, told in done.stderr) == (1, True), done.stderr
    assert submitter.submit("--hold", "--comment=metasched min_gpus=1").hold is Hold.USER
    assert submitter.submit("--hold", "--comment=min_gpu is not a tag")


def test_the_shared_root_reaches_the_jobs_environment(submitter):
    """A value that the user has set stays."""
    job = submitter.submit("--comment=metasched")
    submitter.client.release(job.slurm_job_id)
    submitter.wait_state(job.slurm_job_id, JobState.RUNNING)
    assert environment(submitter, job)["METASCHED_SHARED"] == "/shared/root"
    own = submitter.submit("--comment=metasched", "--export=METASCHED_SHARED=/mine")
    submitter.client.release(own.slurm_job_id)
    submitter.wait_state(own.slurm_job_id, JobState.RUNNING)
    assert environment(submitter, own)["METASCHED_SHARED"] == "/mine"


@pytest.mark.parametrize(
    "change",
    [
        *("Priority=100", "Comment=mine", "Partition=train", "Requeue=0", "NumNodes=1-1", "Gres=gpu:4"),
        *("ReqNodeList=n1", "StartTime=now"),
    ],
)
def test_an_owner_cannot_change_fields_that_metasched_sets(submitter, owned, change):
    """Slurm denies it, and the job is unchanged."""
    done = submitter.run("scontrol", "update", f"JobId={owned.slurm_job_id}", change)
    assert "denied" in done.stderr
    assert submitter.job(owned.slurm_job_id) == owned


def test_an_owner_cannot_release_a_waiting_job(submitter, owned):
    """This holds although the hold is a user's until the daemon has read the job."""
    assert "denied" in submitter.run("scontrol", "release", owned.slurm_job_id).stderr
    assert submitter.job(owned.slurm_job_id) == owned


def test_a_job_submitted_held_waits_for_metasched_after_its_owners_release(submitter):
    """Slurm itself never starts it: its begin time is out of reach. After its first run its owner cannot release it."""
    if os.geteuid() != 0:
        pytest.skip("only root can submit as somebody else")
    job = submitter.submit(f"--uid={OWNER}", "--gid=nogroup", "--comment=metasched", "--gres=gpu:1", "--hold")
    assert re.fullmatch("metasched:[0-9a-f]{16}:held", job.admin_comment)
    assert "denied" in submitter.run("scontrol", "update", f"JobId={job.slurm_job_id}", "Priority=9").stderr
    assert submitter.run("scontrol", "release", job.slurm_job_id).returncode == 0
    let_go = submitter.job(job.slurm_job_id)
    assert (let_go.state, let_go.hold, let_go.eligible) == (JobState.PENDING, Hold.NONE, OUT_OF_REACH)
    assert "denied" in submitter.run("scontrol", "release", job.slurm_job_id).stderr
    submitter.client.update(job.slurm_job_id, Geometry(nodes=("n1",), gpus_per_node=1, tasks=1, cpus=1))
    submitter.client.release(job.slurm_job_id)
    submitter.wait_state(job.slurm_job_id, JobState.RUNNING)
    submitter.client.requeue_hold(job.slurm_job_id)
    submitter.wait_state(job.slurm_job_id, JobState.PENDING)
    assert "denied" in submitter.run("scontrol", "release", job.slurm_job_id).stderr


def test_a_job_submitted_held_waits_for_metasched_after_roots_release(submitter):
    """Slurm itself never starts it; the daemon, which is root as well, can."""
    job = submitter.submit("--comment=metasched", "--gres=gpu:1", "--hold")
    submitter.run("scontrol", "release", job.slurm_job_id, user=None)
    let_go = submitter.job(job.slurm_job_id)
    assert (let_go.state, let_go.hold, let_go.eligible) == (JobState.PENDING, Hold.NONE, OUT_OF_REACH)
    submitter.client.hold(job.slurm_job_id)
    submitter.client.update(job.slurm_job_id, Geometry(nodes=("n1",), gpus_per_node=1, tasks=1, cpus=1))
    submitter.client.release(job.slurm_job_id)
    submitter.wait_state(job.slurm_job_id, JobState.RUNNING)


@pytest.mark.parametrize("change", ["Comment=metasched", "Partition=train", "Partition=main,train", "QOS=Gang"])
def test_an_owner_cannot_tag_a_submitted_job(submitter, change):
    """The job would be neither held nor stamped; Slurm denies it, and the job is unchanged."""
    if os.geteuid() != 0:
        pytest.skip("only root can submit as somebody else")
    job = submitter.submit(f"--uid={OWNER}", "--gid=nogroup", "--hold")
    done = submitter.run("scontrol", "update", f"JobId={job.slurm_job_id}", change)
    assert "denied" in done.stderr
    assert submitter.job(job.slurm_job_id) == job


def test_another_plugins_text_stays_after_the_stamp(submitter):
    """Sites keep their own text in AdminComment."""
    begin = "local function submit(job_desc, part_list)\n"
    submitter.edit({begin: begin + '  job_desc.admin_comment = "cost centre 7"\n'})
    comment = submitter.submit("--comment=metasched", "--hold").admin_comment
    assert re.fullmatch("metasched:[0-9a-f]{16}:held cost centre 7", comment)


def test_an_owner_can_change_everything_else_and_cancel(submitter, owned):
    """Names and time limits are not metasched's to control."""
    assert submitter.run("scontrol", "update", f"JobId={owned.slurm_job_id}", "TimeLimit=5", "Name=new").returncode == 0
    assert (submitter.job(owned.slurm_job_id).name, submitter.job(owned.slurm_job_id).time_limit) == ("new", 300.0)
    assert submitter.run("scancel", owned.slurm_job_id).returncode == 0
    submitter.wait_state(owned.slurm_job_id, JobState.CANCELLED)


def test_an_owner_can_change_an_untagged_job(submitter):
    """The priority can be changed as far as Slurm allows."""
    if os.geteuid() != 0:
        pytest.skip("only root can submit as somebody else")
    job = submitter.submit(f"--uid={OWNER}", "--gid=nogroup", "--hold")
    assert submitter.run("scontrol", "update", f"JobId={job.slurm_job_id}", "Comment=mine").returncode == 0
    assert submitter.run("scontrol", "release", job.slurm_job_id).returncode == 0
    submitter.wait_state(job.slurm_job_id, JobState.RUNNING)


def test_the_daemon_may_do_everything(submitter, owned):
    """The daemon runs as SlurmUser or root."""
    submitter.client.hold(owned.slurm_job_id)
    submitter.client.release(owned.slurm_job_id)
    submitter.wait_state(owned.slurm_job_id, JobState.RUNNING)


@pytest.mark.parametrize(
    "break_it",
    [
        {"job_desc.priority = 0\n": "job_desc.priority = 0 + nothing.at_all\n"},
        {'local WORD = "metasched"': 'local WORD = "metasched"\nslurm.log_user = nil'},
        {"local QOS = {}": 'local QOS = "gang"', 'local WORD = "metasched"': 'local WORD = "other"'},
    ],
)
def test_an_error_in_the_plugin_blocks_no_submission(submitter, break_it):
    """The error is logged, and the job is accepted."""
    log = submitter.cluster.base / "log" / "slurmctld.log"
    before = log.read_text().count("metasched: job_submit:")
    submitter.edit(break_it)
    job = submitter.submit("--comment=metasched")
    assert job.state in (JobState.PENDING, JobState.RUNNING)
    assert log.read_text().count("metasched: job_submit:") > before


def environment(submitter, job):
    """The variables that the job's script saw."""
    path = submitter.base / f"{job.job_id}.env"
    deadline = time.monotonic() + 90
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
