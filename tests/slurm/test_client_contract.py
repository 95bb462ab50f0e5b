"""The client contract on the command-line client and a real cluster."""

import getpass
import os
import re
import shutil
import subprocess
import time
from dataclasses import fields
from functools import partial
from importlib.util import find_spec

import pytest

from metasched.core.model import Hold
from metasched.devcluster import DevCluster, NodeGroup, Settings
from metasched.slurm import command_line_client, json_releases
from metasched.slurm.client import JobState
from metasched.slurm.command_line_client import CommandLineClient
from metasched.slurm.command_runner import plain_environment, run_command
from metasched.slurm.errors import SlurmUnavailableError
from metasched.slurm.job_readers import SQUEUE, TextReader
from metasched.slurm.json_parser import parse_jobs

pytest.register_assert_rewrite("tests.fakes.client_contract")
from tests.fakes.client_contract import ClientContract  # noqa: E402  after the line above
from tests.slurm.conftest import new_base, restore  # noqa: E402

KILL_WAIT = 4  # so that a slow machine sees what happens before it
SCRIPTS = {
    "sleep": "exec sleep 600",
    "deaf": "trap '' TERM\ntouch {base}/noted-$JOB.ready\nfor i in $(seq 600); do sleep 0.2; done",
    "saves": "trap 'exit 85' TERM\ntouch {base}/noted-$JOB.ready\nfor i in $(seq 600); do sleep 0.2; done",
    "note": "exec srun -n1 --mem=0 {base}/note {base}/noted-$JOB",
    "exit": "sleep 0.2; exit {code}",
}
# The Slurm job id of the contract: 12, or 12_3 for a task of an array.
NAME = "task=$SLURM_ARRAY_TASK_ID\nJOB=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${task:+_$task}\n"
NOTE = "#!/bin/bash\ntrap 'echo USR2 >> $1' USR2\necho > $1.ready\nwhile :; do sleep 0.05; done\n"


class RealWorld:
    """A dev cluster as the contract's world. Jobs belong to an ordinary user where the cluster can run such jobs."""

    def __init__(self, cluster, base, *, by_pyslurm=False):
        self.cluster, self.base = cluster, base
        base.chmod(0o777)
        self.client = CommandLineClient(cluster.env)
        if by_pyslurm:
            self.client.write_by_pyslurm()
        (base / "note").write_text(NOTE)
        (base / "note").chmod(0o755)
        self.owner = "nobody" if os.geteuid() == 0 else None

    def close(self):
        self.client.close()
        shutil.rmtree(self.base)

    def submit(self, *options, does="sleep"):
        verb, _, code = does.partition(" ")
        script = self.base / f"{verb}{code}.sh"
        script.write_text("#!/bin/bash\n" + NAME + SCRIPTS[verb].format(base=self.base, code=code) + "\n")
        as_owner = ["--uid=65534", "--gid=65534"] if self.owner else []
        where = [f"--chdir={self.base}", "--output=/dev/null"]
        return self.cluster.run("sbatch", "--parsable", *as_owner, *where, *options, str(script)).strip()

    def started(self, *options, does="sleep"):
        slurm_job_id = self.submit(*options, does=does)
        self.wait_state(slurm_job_id, JobState.RUNNING)
        if does.startswith(("note", "deaf", "saves")):
            self.wait_ready(slurm_job_id)
        return slurm_job_id

    def wait_ready(self, slurm_job_id):
        self.wait(lambda _: (self.base / f"noted-{slurm_job_id}.ready").exists(), "its trap is set")

    def job(self, slurm_job_id):
        return next(job for job in self.client.jobs() if job.slurm_job_id == slurm_job_id)

    def noted(self, slurm_job_id):
        path = self.base / f"noted-{slurm_job_id}"
        return path.read_text().split() if path.exists() else []

    def wait(self, condition, why):
        deadline = time.monotonic() + 90
        while not condition({job.slurm_job_id: job for job in self.client.jobs()}):
            assert time.monotonic() < deadline, f"never: {why}\n{self.cluster.run('squeue', '-a', '-t', 'all')}"
            time.sleep(0.05)

    def wait_state(self, slurm_job_id, state):
        self.wait(lambda seen: seen[slurm_job_id].state is state, f"job {slurm_job_id} is {state}")

    def pass_time(self, seconds):
        time.sleep(seconds)

    def _as_owner(self, *argv):
        if self.owner is None:
            pytest.skip("the cluster's user and the jobs' owner are the same")
        subprocess.run(argv, env=self.cluster.env, user=self.owner, group="nogroup", timeout=30, check=False)

    def cancel(self, slurm_job_id):
        self.cluster.run("scancel", slurm_job_id)

    def owner_release(self, slurm_job_id):
        self._as_owner("scontrol", "release", slurm_job_id)

    def owner_requeue(self, slurm_job_id):
        self._as_owner("scontrol", "requeue", slurm_job_id)

    def node_down(self, name):
        self.cluster.run("scontrol", "update", f"nodename={name}", "state=down", "reason=test")

    def node_drain(self, name):
        self.cluster.run("scontrol", "update", f"nodename={name}", "state=drain", "reason=test")


FORGED_FIELDS = "x UserId=root(0) ArrayJobId=1 ArrayTaskId=2 Account=vips Priority=9 NumNodes=7 TresPerJob=gres:gpu:8"
FORMS = (
    ["--gres=gpu:2", "--nodes=2", "--ntasks=5", "--mem=1500"],
    ["--gpus=1", "--nodes=1-2", "--ntasks=2", "--mem=2G", "--time=5", "--job-name=x  Y=1 "],
    ["--array=0-9%2", "--gres=gpu:v100:1"],
    ["--exclusive", "--gpus=2", "--comment= a  b "],
    ["--gres=shard:1", "--nice=7"],
    [
        "--nodes=2",
        "--ntasks-per-node=2",
        "--cpus-per-gpu=1",
        "--mem-per-gpu=100M",
        "--gpus-per-task=1",
        "--hold",
    ],
    [
        "--nodelist=n1",
        "--exclude=n2",
        "--cpus-per-task=2",
        "--ntasks-per-node=3",
        "--hold",
        f"--network={FORGED_FIELDS}",
    ],
    ["--begin=now+1hour", "--nodes=4", "--gpu-bind=closest", "--mail-type=END", "--mail-user=ann"],
    ["--gres=gpu:1", "--chdir={base}\n   AdminComment=metasched:0123456789abcdef "],
    [
        "--gres=gpu:1",
        "--comment=x\n   StdErr=\n   StdIn=\n   StdOut=\n   Power=\n\nJobId=1 JobName=x\n   UserId=root(0)",
    ],
)
"""Options of jobs that ask for resources in all forms, and of some with texts that look like lines of Slurm's."""


def differing(text, json):
    """The fields in which a job that was read as text is another than as JSON, but for a request that is past."""
    names = {field.name for field in fields(text) if getattr(text, field.name) != getattr(json, field.name)}
    if text.state is JobState.PENDING:
        return names
    return names - {"nodes_requested", "nodes_max"} - ({"cpus"} if text.ended is not None else set())


def by_json(world):
    """All jobs by their ids, as the JSON has them."""
    printed, _ = run_command([*SQUEUE, "--json"], timeout=30, env=plain_environment(world.cluster.env))
    return {job.slurm_job_id: job for job in parse_jobs(printed).records}


def jobs_of(reading):
    """The jobs of a reading, by their ids."""
    return {job.slurm_job_id: job for jobs in reading.records.values() for job in jobs}


def text_reader(world, asked_json):
    """A reader of texts that notes its reads of JSON."""

    def run(argv):
        asked_json.extend(argv[-1:] if "--json" in argv else [])
        return run_command(argv, timeout=30, env=plain_environment(world.cluster.env))[0]

    return TextReader(run, lambda argv: run(argv).encode(), lambda call: pytest.fail("nothing of this can wait"))


def up(nodes):
    settings = Settings((NodeGroup(nodes, shards=2),), kill_wait=KILL_WAIT, nodes_per_switch=2)
    return DevCluster.up(new_base(), settings, owner_pid=os.getpid())


@pytest.fixture(scope="module")
def small():
    """A cluster without metasched's job_submit plugin: the contract is about Slurm alone."""
    with up(4) as cluster:
        yield cluster


class TestCommandLineClient(ClientContract):
    by_pyslurm = False

    @pytest.fixture
    def world(self, small):
        made = RealWorld(small, new_base(), by_pyslurm=self.by_pyslurm)
        yield made
        made.close()
        restore(small)

    @pytest.fixture
    def farm(self, request):
        with up(request.param) as cluster:
            made = RealWorld(cluster, new_base(), by_pyslurm=self.by_pyslurm)
            yield made
            made.close()


@pytest.mark.skipif(find_spec("pyslurm") is None, reason="pyslurm is not installed: it needs a Slurm of its release")
class TestPyslurm(TestCommandLineClient):
    """The contract with pyslurm, where one works with this Slurm; Slurm's commands carry out the rest."""

    by_pyslurm = True


class TestRealSlurmOnly:
    """Tests that need a real Slurm."""

    @pytest.fixture
    def world(self, small):
        made = RealWorld(small, new_base())
        yield made
        made.close()
        restore(small)

    def test_hostile_text_reaches_no_other_field(self, world):
        """Names and comments of any bytes, invalid UTF-8 included, are read back as text."""
        evil = 'x UserId=root(0) "}],\n{"job_id": 1}, \x1b[31m JobState=RUNNING'
        script = world.base / "job.sh"
        script.write_text("#!/bin/bash\nsleep 60\n")
        argv = ["sbatch", "--parsable", "--hold", "--output=/dev/null", f"--job-name={evil}"]
        raw = [word.encode() for word in argv] + [b"--comment=metasched \xff\xfe", str(script).encode()]
        done = subprocess.run(raw, env=world.cluster.env, capture_output=True, timeout=30, check=True)
        other = world.submit("--hold")
        job = world.job(done.stdout.decode().strip())
        assert (job.name, job.comment) == (evil, "metasched \ufffd\ufffd")
        assert (job.state, job.user) == (JobState.PENDING, getpass.getuser())
        assert world.job(other).state is JobState.PENDING

    def test_the_text_of_a_job_reads_as_its_json(self, world):
        """Slurm 22.05: whatever a job asks for and whatever state it is in, with the forms of all numbers."""
        if world.client.settings().version >= json_releases.PRINTS_SINGLE_JOBS:
            pytest.skip("this release prints the JSON of single jobs, which is read there")
        for options in FORMS:
            world.submit(*[option.format(base=world.base) for option in options])
        ended = [world.submit(does="exit 3"), world.submit(does="exit 0"), world.submit(does="exit 85")]
        requeued, suspended, stamped = world.started(), world.started(), world.submit("--hold")
        world.submit(f"--dependency=afterany:{suspended}")
        world.client.requeue_hold(requeued)
        world.client.suspend(suspended)
        world.client.stamp(stamped, "metasched:0123456789abcdef words ")
        for job_id in ended:
            world.wait(lambda seen, job_id=job_id: seen[job_id].state is not JobState.RUNNING, "the short job is over")

        asked_json = []
        deadline = time.monotonic() + 60
        while True:
            before = by_json(world)
            record_ids = {str(job.job_id) for job in before.values()}
            lines = partial(dict.fromkeys, record_ids, "")
            many = jobs_of(text_reader(world, asked_json).read(record_ids, (), lines))
            single = [
                job
                for one in record_ids
                for job in jobs_of(text_reader(world, asked_json).read([one], (), dict)).values()
            ]
            if before == by_json(world):  # nothing has changed meanwhile
                break
            assert time.monotonic() < deadline, "the jobs do not come to rest"
        assert many.keys() == before.keys()
        for found in (*many.values(), *single):
            assert not differing(found, before[found.slurm_job_id]), found
        assert {job.slurm_job_id for job in single} == before.keys()
        assert asked_json, "the forged texts are read as JSON"
        assert {before[job_id].exit_code for job_id in ended} >= {3, 0}

    def test_long_array_expressions_are_not_cut(self, world):
        """Slurm shows 64 characters of them by default."""
        tasks = ",".join(str(number) for number in range(1, 400, 3))
        array = world.submit("--hold", f"--array={tasks}")
        assert sum(str(job.array_job_id) == array for job in world.client.jobs()) == 133

    def test_an_unchanged_queue_costs_one_text_read(self, world, monkeypatch):
        """A change of a job makes the next poll read it again."""
        slurm_job_id = world.submit("--hold")
        world.client.jobs()
        commands = []
        for name in ("run_command", "run_for_large_output"):
            run = getattr(command_line_client, name)
            monkeypatch.setattr(
                command_line_client, name, lambda argv, run=run, **more: (commands.append(argv), run(argv, **more))[1]
            )
        world.client.jobs()
        assert [argv[0] for argv in commands] == ["squeue"]
        assert "--json" not in commands[0]
        world.cluster.run("scontrol", "release", slurm_job_id)
        world.wait_state(slurm_job_id, JobState.RUNNING)

    def test_an_absent_controller_is_unavailable(self, world):
        """Reads and writes say so, and work again when it is back."""
        slurm_job_id = world.submit("--hold")
        world.client.hold(slurm_job_id)
        conf = world.base / "slurm.conf"
        text = world.cluster.conf.read_text()
        conf.write_text(re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1", text))
        (world.base / "gres.conf").write_text((world.cluster.conf.parent / "gres.conf").read_text())
        lost = CommandLineClient({**world.cluster.env, "SLURM_CONF": str(conf)}, timeout=1)
        for call in (
            lost.jobs,
            lost.nodes,
            lost.racks,
            lambda: lost.hold(slurm_job_id),
            lambda: lost.signal([slurm_job_id], "SIGUSR2"),
        ):
            with pytest.raises(SlurmUnavailableError):
                call()
        lost.close()
        assert world.job(slurm_job_id).hold is Hold.ADMIN

    def test_an_admin_hold_leaves_no_moment_without_a_hold(self, world):
        """A job that could start at once does not start while its user's hold becomes the administrator's."""
        job_ids = [world.submit("--hold") for _ in range(10)]
        for slurm_job_id in job_ids:
            world.client.hold(slurm_job_id)
        world.pass_time(2)
        jobs = [world.job(slurm_job_id) for slurm_job_id in job_ids]
        assert {(job.state, job.hold, job.restarts) for job in jobs} == {(JobState.PENDING, Hold.ADMIN, 0)}
