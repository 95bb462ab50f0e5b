"""The wrapper metasched-run, with stand-ins for srun and scontrol on PATH."""

import errno
import importlib.util
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

WRAPPER = Path(__file__).parents[3] / "slurm_scripts" / "metasched-run"
UID = "0123456789abcdef"

# Notes how it was called and with what environment; then does what the test says in FAKE_<NAME>, a Python statement.
FAKE = """#!{python} -S
import json, os, signal, sys, time
name = os.path.basename(sys.argv[0])
with open(os.path.join({directory!r}, name + ".jsonl"), "a") as log:
    log.write(json.dumps({{"argv": sys.argv[1:], "environ": dict(os.environ)}}) + "\\n")
exec(os.environ.get("FAKE_" + name.upper(), ""))
"""


class Slurm:
    """A batch script's surroundings; unknown commands are not on its PATH."""

    def __init__(self, directory):
        self.directory = directory
        self.shared = directory / "shared"
        for name in ("srun", "scontrol"):
            self.fake(name)
        (directory / "bin" / "python3").symlink_to(sys.executable)
        self.environ = {
            "PATH": str(directory / "bin"),
            "SLURM_JOB_ID": "123",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_CPUS_PER_NODE": "16(x2),9",
            "SLURM_GPUS_ON_NODE": "4",
            "SLURM_NTASKS": "3",
            "SLURM_GPUS_PER_NODE": "v100:1",
        }

    def fake(self, name):
        path = self.directory / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(FAKE.format(python=sys.executable, directory=str(self.directory)))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def write_lease(self, slurm_job_id="123", uid=UID, **changes):
        lease = {
            "format": 1,
            "uid": uid,
            "address": slurm_job_id,
            "run": 2,
            "requeue": {"by": "slurm", "exit_code": 85},
            "signal": "SIGUSR2",
            "stop": None,
        } | changes
        mailbox = self.shared / "mailbox"
        (mailbox / "address").mkdir(parents=True, exist_ok=True)
        (mailbox / uid).mkdir(exist_ok=True)
        (mailbox / "address" / slurm_job_id).write_text(f"{uid}\n")
        (mailbox / uid / "lease.json").write_text(json.dumps(lease))
        self.environ["METASCHED_SHARED"] = str(self.shared)

    def start(self, *arguments, **environ):
        return subprocess.Popen(
            [str(WRAPPER), *arguments], env=self.environ | environ, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments, **environ):
        """The exit code, and what was said on stderr."""
        process = self.start(*arguments, **environ)
        _, errors = process.communicate(timeout=60)
        return process.returncode, errors

    def calls(self, name):
        path = self.directory / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_call(self, name):
        end = time.monotonic() + 60
        while not self.calls(name):
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.fixture
def slurm(tmp_path):
    return Slurm(tmp_path)


def test_srun_line_of_a_gpu_job(slurm):
    """One task and one share of the CPUs for each GPU of this run; the frozen values are gone."""
    slurm.write_lease()
    assert slurm.run("python", "train.py", "--", "-x") == (0, "")
    (call,) = slurm.calls("srun")
    assert call["argv"] == [
        "--nodes=2",
        "--kill-on-bad-exit=1",
        "--mpi=none",
        "--export=ALL",
        "--ntasks-per-node=4",
        "--gpus-per-node=4",
        "--cpus-per-task=2",
        "python",
        "train.py",
        "--",
        "-x",
    ]
    assert not {"SLURM_NTASKS", "SLURM_GPUS_PER_NODE"} & call["environ"].keys()


def test_srun_asks_for_a_part_of_a_gpu_by_its_own_name(slurm):
    """A job of shards has one GPU, whole or in part, on each node, and a step cannot ask for it as a GPU."""
    slurm.write_lease()
    slurm.environ |= {"SLURM_GPUS_ON_NODE": "1", "SLURM_SHARDS_ON_NODE": "2"}
    assert slurm.run("python", "train.py") == (0, "")
    (call,) = slurm.calls("srun")
    assert {"--gres=shard:2", "--ntasks-per-node=1"} <= set(call["argv"])
    assert not any(word.startswith("--gpus") for word in call["argv"])


def test_srun_options_come_last(slurm):
    """The user's srun options follow ours, where they win."""
    slurm.run("--cpus-per-task=1", "--label", "--", "python", "train.py")
    assert slurm.calls("srun")[0]["argv"][-5:] == [
        "--cpus-per-task=2",
        "--cpus-per-task=1",
        "--label",
        "python",
        "train.py",
    ]


def test_few_cpus(slurm):
    """More GPUs than CPUs on a node are no obstacle."""
    slurm.run("python", SLURM_JOB_CPUS_PER_NODE="16,2")
    assert slurm.calls("srun")[0]["argv"][-3:] == ["--cpus-per-task=1", "--overcommit", "python"]


def test_srun_line_of_a_cpu_job(slurm):
    """A job without GPUs keeps the tasks that Slurm gave it."""
    del slurm.environ["SLURM_GPUS_ON_NODE"]
    slurm.run("python", SLURM_CPUS_PER_TASK="4")
    (call,) = slurm.calls("srun")
    assert call["argv"][4:] == ["--cpus-per-task=4", "python"]
    assert call["environ"]["SLURM_NTASKS"] == "3"


TORCHRUN = [
    ("torchrun", "train.py", "-x"),
    ("/opt/env/bin/torchrun", "--nproc-per-node=2", "train.py"),
    ("python", "-m", "torch.distributed.run", "train.py"),
    ("env", "A=1", "python", "-m", "torch.distributed.launch", "train.py"),
    ("apptainer", "exec", "image.sif", "torchrun", "train.py"),
]


@pytest.mark.parametrize("command", TORCHRUN)
def test_torchrun(slurm, command):
    """Torchrun gets one task for each node with all that is there, and learns where and how many it is."""
    others = {"TORCHELASTIC_RUN_ID": "outer", "METASCHED_EXIT_FILE": "/outer", "PET_NPROC_PER_NODE": "64"}
    slurm.write_lease(signal="SIGUSR1")
    assert slurm.run(*command, **others) == (0, "")
    (call,) = slurm.calls("srun")
    assert call["argv"][:8] == [
        "--nodes=2",
        "--kill-on-bad-exit=1",
        "--mpi=none",
        "--export=ALL",
        "--ntasks=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=9",
        "--gpus-per-node=4",
    ]
    assert call["argv"][8:10] == ["sh", "-c"]
    assert call["argv"][11:] == ["metasched-run", str(int(signal.SIGUSR1)), *command]
    environ = call["environ"]
    assert (environ["PET_NNODES"], environ["PET_NPROC_PER_NODE"]) == ("2", "4")
    assert environ["PET_MASTER_ADDR"] == environ["MASTER_ADDR"]
    assert environ["PET_MASTER_PORT"] == environ["MASTER_PORT"]
    assert not {"TORCHELASTIC_RUN_ID", "METASCHED_EXIT_FILE"} & environ.keys()
    assert int(environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) > 3600


def test_torchrun_of_a_cpu_job(slurm):
    """Without GPUs torchrun starts as many processes as Slurm gave tasks to a node; the user's patience counts."""
    del slurm.environ["SLURM_GPUS_ON_NODE"]
    slurm.run("torchrun", "train.py", SLURM_TASKS_PER_NODE="3(x2)", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="7")
    environ = slurm.calls("srun")[0]["environ"]
    assert (environ["PET_NPROC_PER_NODE"], environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) == ("3", "7")


@pytest.mark.parametrize("command", [("python", "train.py", "torchrun"), ("python", "-m", "train"), ("torchruns",)])
def test_no_torchrun(slurm, command):
    """What only looks like torchrun is a command like any other."""
    slurm.run(*command)
    assert slurm.calls("srun")[0]["argv"][-len(command) :] == list(command)
    assert "PET_NNODES" not in slurm.calls("srun")[0]["environ"]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 3", 3),
        ('echo 85 >"$METASCHED_EXIT_FILE"; exit 1', 85),
        ('echo 85 >"$METASCHED_EXIT_FILE"', 85),
        ('kill -USR2 $$; kill -USR2 $PPID; kill -TERM $PPID; [ "$PET_NODE_RANK" = 5 ] && exit 4', 4),
        ("kill -KILL $$", 137),
        ("exit 0", 0),
    ],
)
def test_shell_round_torchrun(slurm, tmp_path, script, expected):
    """The shell outlives signals, exits with what the trainers left, or else torchrun's code, and cleans up."""
    loader = SourceFileLoader("metasched_run", str(WRAPPER))
    run = importlib.util.module_from_spec(importlib.util.spec_from_loader("metasched_run", loader))
    loader.exec_module(run)
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        ["sh", "-c", run.TORCHRUN_SHELL, "metasched-run", str(int(signal.SIGUSR2)), "sh", "-c", script],
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp"), "SLURM_NODEID": "5"},
        timeout=60,
        check=False,
    )
    assert done.returncode == expected
    assert not list((tmp_path / "tmp").iterdir())


def test_environment(slurm):
    """The tasks learn what the protocol says, and a meeting point."""
    slurm.write_lease(requeue={"by": "slurm", "exit_code": 99}, signal="SIGUSR1")
    slurm.run("python")
    environ = slurm.calls("srun")[0]["environ"]
    assert {name: value for name, value in environ.items() if name.startswith("METASCHED")} == {
        "METASCHED_SHARED": str(slurm.shared),
        "METASCHED_UID": UID,
        "METASCHED_RUN": "2",
        "METASCHED_LEASE": str(slurm.shared / "mailbox" / UID / "lease.json"),
        "METASCHED_REPORTS": str(slurm.shared / "reports" / UID),
        "METASCHED_EXIT_CODE": "99",
        "METASCHED_SIGNAL": "SIGUSR1",
    }
    assert environ["MASTER_ADDR"]
    assert 20_000 <= int(environ["MASTER_PORT"]) < 32_000


def test_array_task(slurm):
    """A task of an array has its own slurm_job_id, and its uid says which task it is."""
    slurm.write_lease(slurm_job_id="120_4", uid=f"{UID}_4")
    assert slurm.run("python", SLURM_ARRAY_JOB_ID="120", SLURM_ARRAY_TASK_ID="4") == (0, "")
    assert slurm.calls("srun")[0]["environ"]["METASCHED_UID"] == f"{UID}_4"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"format": 2}, "'format' cannot be 2"),
        ({"run": True}, "'run' cannot be True"),
        ({"requeue": {"by": "luck", "exit_code": 85}}, "'by' cannot be 'luck'"),
        ({"requeue": {"by": "slurm", "exit_code": 256}}, "'exit_code' cannot be 256"),
        ({"requeue": None}, "'requeue' cannot be None"),
        ({"signal": "SIGNOT"}, "'signal' cannot be 'SIGNOT'"),
        ({"stop": {"run": "2"}}, "'run' cannot be '2'"),
        ({"uid": "fedcba9876543210"}, "'uid' cannot be '0123456789abcdef'"),
    ],
)
def test_malformed_lease(slurm, changes, word):
    """A lease that the protocol does not allow is named with its key, and the job runs as plain Slurm."""
    slurm.write_lease()
    path = slurm.shared / "mailbox" / UID / "lease.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    code, errors = slurm.run("python", FAKE_SRUN="sys.exit(85)")
    assert code == 85
    assert "running as plain Slurm" in errors
    assert str(path) in errors
    assert word in errors.replace("fedcba9876543210", UID)
    assert "METASCHED_RUN" not in slurm.calls("srun")[0]["environ"]


@pytest.mark.parametrize("content", ["", "../../../etc", "0123456789ABCDEF", "0123456789abcdef_", "\x00\xff"])
def test_malformed_uid(slurm, content):
    """An slurm_job_id that holds no uid leads nowhere."""
    slurm.write_lease()
    (slurm.shared / "mailbox" / "address" / "123").write_bytes(content.encode("latin-1"))
    code, errors = slurm.run("python")
    assert code == 0
    assert "and not a uid" in errors


def test_plain_slurm(slurm):
    """Without metasched the job runs all the same, and nothing of the job that submitted it comes through."""
    others = {"METASCHED_RUN": "7", "METASCHED_LEASE": "/elsewhere", "METASCHED_EXIT_CODE": "85"}
    others |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    code, errors = slurm.run("python", FAKE_SRUN="sys.exit(3)", **others)
    assert (code, errors) == (3, "metasched-run: running as plain Slurm: METASCHED_SHARED is not set\n")
    assert not others.keys() & slurm.calls("srun")[0]["environ"].keys()


def test_outside_slurm(slurm):
    """Outside Slurm the command is all there is, with its own exit code."""
    del slurm.environ["SLURM_JOB_ID"]
    assert slurm.run("python3", "-c", "raise SystemExit(5)") == (5, "")
    assert slurm.run("no-such-command") == (127, "metasched-run: no-such-command: No such file or directory\n")


@pytest.mark.parametrize("arguments", [(), ("--label",), ("--label", "--")])
def test_no_command(slurm, arguments):
    """Without a command there is a usage line."""
    code, errors = slurm.run(*arguments)
    assert code == 2
    assert errors.startswith("usage: metasched-run")


STOP = {"run": 2, "requested": 1.0, "deadline": 2.0, "reason": "preempted"}


@pytest.mark.parametrize(
    ("code", "stop", "expected"),
    [
        (0, STOP, 0),  # finished just in time
        (1, None, 1),  # failed by itself
        (1, STOP, 85),  # failed while it stopped
        (140, STOP, 85),  # the signal came before Python's handler
        (140, STOP | {"run": 1}, 140),  # the request was for another run
        (76, STOP, 76),  # superseded: the job is somebody else's now
    ],
)
def test_requeue(slurm, code, stop, expected):
    """Slurm is asked to requeue exactly when the run was stopped."""
    slurm.write_lease(stop=stop)
    term = "os.kill(os.getppid(), signal.SIGTERM)"
    assert slurm.run("python", FAKE_SRUN=f"sys.exit({code})", FAKE_SCONTROL=term) == (expected, "")
    assert len(slurm.calls("scontrol")) == (expected == 85)


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (85, 0), (140, 140)])
@pytest.mark.parametrize("stop", [None, STOP])
def test_a_job_that_is_to_end_for_good_is_not_requeued(slurm, code, expected, stop):
    """Whatever its trainer does; a checkpoint that a stop has saved is the last one."""
    slurm.write_lease(stop=stop, finish=STOP)
    assert slurm.run("python", FAKE_SRUN=f"sys.exit({code})") == (expected, "")
    assert not slurm.calls("scontrol")


@pytest.mark.parametrize(("retries", "expected", "requeues"), [(2, 85, 1), (0, 1, 0), (None, 1, 0)])
def test_a_step_that_srun_cannot_create(slurm, retries, expected, requeues):
    """The job is put back as often as the lease says; without its word it fails, as plain srun does."""
    slurm.write_lease(**({} if retries is None else {"launch_retries": retries}))
    failing = "sys.exit(int(os.environ['SLURM_EXIT_ERROR']))"
    code, _ = slurm.run("train", FAKE_SRUN=failing, FAKE_SCONTROL="os.kill(os.getppid(), signal.SIGTERM)")
    assert (code, len(slurm.calls("scontrol"))) == (expected, requeues)


@pytest.mark.parametrize(("number", "expected"), [(errno.ECONNRESET, 85), (errno.EHOSTUNREACH, 85), (11, 139)])
def test_tasks_that_srun_cannot_launch_as_a_node_is_lost(slurm, number, expected):
    """Srun tells the error of the connection as if a signal of that number had ended it; a real signal is none."""
    slurm.write_lease(launch_retries=2)
    term = "os.kill(os.getppid(), signal.SIGTERM)"
    assert slurm.run("train", FAKE_SRUN=f"sys.exit({128 + number})", FAKE_SCONTROL=term)[0] == expected


KNOWN_GOOD = {"gpus": 4, "first_steps": 5}


@pytest.mark.parametrize(
    ("known_good", "steps", "code", "expected"),
    [
        (KNOWN_GOOD, None, 1, 85),
        (KNOWN_GOOD, 4, 137, 85),
        (KNOWN_GOOD, 5, 1, 1),
        (KNOWN_GOOD, 4, 0, 0),
        (KNOWN_GOOD, 4, 76, 76),
        (None, None, 1, 1),
    ],
)
def test_a_script_that_fails_at_a_new_size_is_put_back(slurm, known_good, steps, code, expected):
    """The wrapper requeues a run that failed in its first steps, with words, and leaves a word for the daemon."""
    slurm.write_lease(known_good=known_good)
    reports = slurm.shared / "reports" / UID
    reports.mkdir(parents=True)
    lines = [{"kind": "start", "run": 2}, *([{"kind": "steps", "steps": 1}] * (steps or 0))]
    (reports / "incarnation-1.jsonl").write_text('{"kind": "start", "run": 1}\n{"kind": "steps", "steps": 900}\n')
    if steps is not None:
        (reports / "incarnation-2.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"ki')
    term = "os.kill(os.getppid(), signal.SIGTERM)"
    found, errors = slurm.run("train", FAKE_SRUN=f"sys.exit({code})", FAKE_SCONTROL=term)
    assert found == expected
    if expected == 85:
        assert json.loads((reports / "failed-run.json").read_text()) == {"v": 1, "run": 2, "exit_code": code}
        assert errors == (
            f"metasched-run: the script failed on 8 GPUs with exit code {code} after {steps or 0} steps, and trained "
            "on 4 before: the job is put back to 4 GPUs, and is not given 8 again\n"
        )
    else:
        assert not (reports / "failed-run.json").exists()


def test_a_failure_of_which_no_word_can_be_left_fails_the_job(slurm):
    """The daemon would give the same number of GPUs again."""
    slurm.write_lease(known_good=KNOWN_GOOD)
    code, errors = slurm.run("train", FAKE_SRUN="sys.exit(1)")
    assert (code, slurm.calls("scontrol")) == (1, [])
    assert "is not put back to 4 GPUs" in errors


def test_requeue_by_exit_code(slurm):
    """Where scontrol can't be had but the exit code does as well, the job is not kept waiting for it."""
    slurm.write_lease()
    code, errors = slurm.run("python", FAKE_SRUN="sys.exit(85)", FAKE_SCONTROL="sys.exit('no answer')")
    assert (code, errors) == (85, "metasched-run: scontrol requeuehold 123: no answer\n")
    assert len(slurm.calls("scontrol")) == 1


def test_requeue_by_wrapper(slurm):
    """The wrapper requeues while it runs, waits for Slurm's SIGTERM, and then exits."""
    slurm.write_lease(requeue={"by": "wrapper", "exit_code": 85})
    term = "os.kill(os.getppid(), signal.SIGTERM)"
    assert slurm.run("python", FAKE_SRUN="sys.exit(85)", FAKE_SCONTROL=term) == (85, "")
    assert [call["argv"] for call in slurm.calls("scontrol")] == [["requeuehold", "123"]]


def test_a_task_of_an_array_is_requeued_alone(slurm):
    """The job id of an array's last task is that of the array, and means all of its tasks."""
    slurm.write_lease(requeue={"by": "wrapper", "exit_code": 85})
    (slurm.shared / "mailbox" / "address" / "123").rename(slurm.shared / "mailbox" / "address" / "123_4")
    term = "os.kill(os.getppid(), signal.SIGTERM)"
    array = {"SLURM_ARRAY_JOB_ID": "123", "SLURM_ARRAY_TASK_ID": "4"}
    assert slurm.run("python", FAKE_SRUN="sys.exit(85)", FAKE_SCONTROL=term, **array) == (85, "")
    assert [call["argv"] for call in slurm.calls("scontrol")] == [["requeuehold", "123_4"]]


def test_requeue_is_tried_again(slurm):
    """A controller that does not answer is asked again."""
    slurm.write_lease(requeue={"by": "wrapper", "exit_code": 85})
    once = f"""
if len(open({str(slurm.directory / "scontrol.jsonl")!r}).readlines()) == 1:
    sys.exit("no answer")
os.kill(os.getppid(), signal.SIGTERM)
"""
    code, errors = slurm.run("python", FAKE_SRUN="sys.exit(85)", FAKE_SCONTROL=once)
    assert (code, errors) == (85, "metasched-run: scontrol requeuehold 123: no answer\n")
    assert len(slurm.calls("scontrol")) == 2


def test_a_later_run_is_not_requeued(slurm):
    """A wrapper whose batch shell was killed may live on while the job runs again."""
    slurm.write_lease(requeue={"by": "wrapper", "exit_code": 85})
    lease = slurm.shared / "mailbox" / UID / "lease.json"
    begins = f"""
import pathlib
lease = pathlib.Path({str(lease)!r})
lease.write_text(lease.read_text().replace('"run": 2', '"run": 3'))
sys.exit("no answer")
"""
    code, errors = slurm.run("python", FAKE_SRUN="sys.exit(85)", FAKE_SCONTROL=begins)
    assert (code, errors) == (85, "metasched-run: scontrol requeuehold 123: no answer\n")
    assert len(slurm.calls("scontrol")) == 1


def test_sigterm(slurm):
    """A SIGTERM is survived until srun has ended, and then nothing is requeued: Slurm itself ends the run."""
    slurm.write_lease(requeue={"by": "wrapper", "exit_code": 85})
    end = slurm.directory / "end"
    wait = f"while not os.path.exists({str(end)!r}): time.sleep(0.01)\nsys.exit(85)"
    process = slurm.start("python", FAKE_SRUN=wait)
    slurm.wait_for_call("srun")
    process.send_signal(signal.SIGTERM)
    end.touch()
    assert process.wait(60) == 85
    process.stderr.close()
    assert slurm.calls("scontrol") == []


def test_preemption_signal_to_the_wrapper(slurm):
    """The preemption signal is passed on to srun."""
    slurm.write_lease()
    ready = slurm.directory / "ready"
    wait = f"signal.signal(signal.SIGUSR2, lambda *_: sys.exit(85)); open({str(ready)!r}, 'w'); time.sleep(60)"
    process = slurm.start("python", FAKE_SRUN=wait, FAKE_SCONTROL="sys.exit(1)")
    end = time.monotonic() + 60
    while not ready.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(60) == 85
    process.stderr.close()


def test_killed_srun(slurm):
    """A srun that dies of a signal gives the exit code that a shell would."""
    code, _ = slurm.run("python", FAKE_SRUN="os.kill(os.getpid(), signal.SIGKILL)")
    assert code == 128 + signal.SIGKILL


def test_a_start_imports_little(slurm):
    """Training waits for the imports of a start; a run that finds no srun makes no others."""
    slurm.write_lease()
    (slurm.directory / "bin" / "srun").unlink()
    argv = [sys.executable, "-IS", "-X", "importtime", str(WRAPPER), "train"]
    done = subprocess.run(argv, env=slurm.environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 127
    assert "metasched-run: srun: No such file" in done.stderr
    imported = set(re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE))
    assert "json" in imported
    assert not {"pathlib", "subprocess", "tempfile", "threading", "typing"} & imported


def test_needs_only_the_standard_library():
    """The wrapper imports nothing but the standard library, and is executable."""
    assert os.access(WRAPPER, os.X_OK)
    found = subprocess.run([sys.executable, "-I", "-S", str(WRAPPER)], capture_output=True, timeout=60, check=False)
    assert found.returncode == 2
