"""The private cluster, proven on real Slurm."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

import metasched
from metasched.devcluster import DevCluster, NodeGroup, Settings, processes
from metasched.devcluster.errors import (
    BadSettingError,
    BaseInUseError,
    CommandError,
    DevClusterError,
    NoClusterError,
    StartError,
)
from metasched.shared_dir import published_status
from tests.saved import until_cluster_saved
from tests.slurm.conftest import JOB_SUBMIT
from tests.slurm.site import Site

SMALL = (NodeGroup(count=1, gpus=2),)
OTHER_USER = "nobody"
# What apt says where there is no network; the unpacked way cannot be tried then.
OFFLINE = (
    "Could not resolve",
    "Temporary failure",
    "Could not connect",
    "Unable to connect",
    "is unreachable",
    "timed out",
    "Connection failed",
)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


def until(condition, seconds=60):
    """Wait for a condition and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)
    return value


def submit(cluster, script, *options):
    """Submit a shell script, and return its job id."""
    return cluster.run("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", script).strip()


def state(cluster, job):
    return cluster.run("squeue", "-h", "-t", "all", "-o", "%T", "-j", job).strip()


def ended(cluster, job, final="COMPLETED"):
    """Wait until the job has ended, and check how."""
    until(lambda: state(cluster, job) not in {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"})
    assert state(cluster, job) == final


def alive(pid):
    return processes.read(int(pid)) is not None


def pid_in(path):
    """Return the pid that a job wrote as a separate line."""
    return until(lambda: path.exists() and path.read_text().endswith("\n") and path.read_text().strip())


def offline_skips(error):
    if any(words in str(error) for words in OFFLINE):
        pytest.skip("Debian's archive cannot be reached from here")


# Up


def test_up_gives_idle_nodes_and_live_daemons(cluster):
    """When `up` returns, every daemon runs and every node is known to Slurm."""
    status = cluster.status()
    assert set(status["daemons"]) == {"munged", "slurmctld", "n1", "n2", "n3", "n4"}
    assert all(alive(pid) for pid in status["daemons"].values())
    assert set(status["nodes"]) == set(cluster.nodes)
    assert "unknown" not in status["nodes"].values()


def test_daemons_listen_on_the_loopback_interface_only(make_cluster):
    """No socket of a daemon can be reached from another machine."""
    cluster = make_cluster(groups=SMALL)
    listening = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = {cluster.port, cluster.port + 1}
    addresses = [row[1].split(":") for row in listening if row[3] == "0A"]
    hosts = {int(port, 16): host for host, port in addresses if int(port, 16) in ours}
    assert hosts == dict.fromkeys(ours, "0100007F")


def test_jobs_on_one_node_get_gpus_of_their_own(clean_cluster, tmp_path):
    """Two jobs of two GPUs share a node, and CUDA_VISIBLE_DEVICES shows each its own two."""
    file = f"{tmp_path}/$SLURM_JOB_ID"
    script = f'echo "$CUDA_VISIBLE_DEVICES" > {file}.tmp; mv {file}.tmp {file}; sleep 600'
    jobs = [submit(clean_cluster, script, "--gres=gpu:v100:2", "--nodelist=n2") for _ in range(2)]
    until(lambda: all((tmp_path / job).exists() for job in jobs))
    first, second = (set((tmp_path / job).read_text().strip().split(",")) for job in jobs)
    assert len(first) == len(second) == 2
    assert first | second == {"0", "1", "2", "3"}


def test_memory_is_a_resource(clean_cluster):
    """A job that asks for more memory than any node has is refused, so memory is counted."""
    with pytest.raises(CommandError, match=r"(?i)memory|node configuration"):
        submit(clean_cluster, "true", "--mem=64001")


def test_groups_give_several_gpu_types_and_cpu_nodes(make_cluster):
    """A job finds its GPU type on the node of that type, and a CPU node has no GPU to give."""
    cluster = make_cluster(groups=(NodeGroup(1, 2, "v100"), NodeGroup(1, 1, "k80"), NodeGroup(1, 0)))
    assert cluster.nodes == ("n1", "n2", "n3")
    assert cluster.run("srun", "--gres=gpu:k80:1", "printenv", "SLURMD_NODENAME").strip() == "n2"
    assert cluster.run("srun", "-C", "cpu", "printenv", "SLURMD_NODENAME").strip() == "n3"
    with pytest.raises(CommandError, match="node configuration"):
        submit(cluster, "true", "--gres=gpu:v100:1", "-C", "cpu")


def test_many_nodes_come_up(make_cluster):
    """Thirty-two nodes of eight GPUs fit on one host."""
    cluster = make_cluster(groups=(NodeGroup(32, 8, "a100"),))
    assert set(cluster.status()["nodes"].values()) == {"idle"}


def test_options_reach_slurm(make_cluster):
    """Slurm's configuration has the options given to `up`, and Slurm's defaults for options that are switched off."""
    cluster = make_cluster(
        groups=SMALL, tuned=False, requeue_exit=None, kill_wait=3, extra_conf=("MinJobAge=77",), cpus=4, memory_mb=2000
    )
    rows = [row.split(" = ") for row in re_squeezed(cluster.run("scontrol", "show", "config")) if " = " in row]
    config = dict(row for row in rows if len(row) == 2)
    assert config["SchedulerParameters"] == "(null)"
    assert config["RequeueExitHold"] == "(null)"
    assert config["KillWait"] == "3 sec"
    assert config["MinJobAge"] == "77 sec"
    assert cluster.run("sinfo", "-h", "-o", "%c %m").split() == ["4", "2000"]


def re_squeezed(text):
    """The lines of a text, with runs of blanks made one."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_exit_code_requeues_and_holds(clean_cluster):
    """A job that exits 85 is held for its next run."""
    job = submit(clean_cluster, "exit 85", "--gres=gpu:1")
    until(lambda: state(clean_cluster, job) == "SPECIAL_EXIT")


def test_job_submit_script_is_loaded_and_may_be_edited(make_cluster, tmp_path):
    """The lua plugin runs the script that `up` was given, and after an edit of the cluster's copy the new one."""
    lua = tmp_path / "given.lua"
    template = """
        function slurm_job_submit(job, partitions, uid) job.comment = "{}" return slurm.SUCCESS end
        function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end
        return slurm.SUCCESS
    """
    lua.write_text(template.format("first"))
    cluster = make_cluster(groups=SMALL, job_submit=lua)

    def comment():
        job = submit(cluster, "true")
        return cluster.run("squeue", "-h", "-t", "all", "-o", "%k", "-j", job).strip()

    assert comment() == "first"

    def second():
        # Slurm misses an edit in the very second in which it loaded the script.
        cluster.job_submit_lua.write_text(template.format("second"))
        return comment() == "second"

    until(second)
    assert "first" in lua.read_text()


# Refusals


def test_a_live_cluster_is_not_overwritten(cluster):
    """A second `up` in the same base is refused and harms nothing."""
    before = cluster.status()["daemons"]
    with pytest.raises(BaseInUseError, match="already holds a cluster"):
        DevCluster.up(cluster.base, Settings(SMALL))
    assert cluster.status()["daemons"] == before


def test_failed_start_shows_the_log_and_leaves_nothing():
    """Where slurmctld refuses its configuration, the error quotes it, and neither file nor process stays."""
    base = Path(tempfile.mkdtemp(prefix="msched-"))
    with pytest.raises(StartError, match="Nonsense"):
        DevCluster.up(base, Settings(SMALL, extra_conf=("Nonsense=1",)))
    assert not base.exists()
    assert not owned_by(base)


def test_base_where_programs_cannot_run_is_a_clear_error(shared_tmp, monkeypatch):
    """A base on a noexec file system is an error that names the daemon; no file stays."""
    monkeypatch.setattr(shutil, "copy", lambda source, target: Path(target).touch(0o644))
    with pytest.raises(StartError, match=r"munged did not start.*Permission denied"):
        DevCluster.up(shared_tmp / "c", Settings(SMALL))
    assert not (shared_tmp / "c").exists()


def test_owner_that_is_dead_already_is_refused():
    """`owner_pid` must be a live process."""
    with subprocess.Popen(["true"]) as gone:
        pass
    base = Path(tempfile.mkdtemp(prefix="msched-"))
    with pytest.raises(BadSettingError, match="no such process"):
        DevCluster.up(base, Settings(SMALL), owner_pid=gone.pid)
    assert not base.exists()


# Faults


def test_jobs_outlive_the_controller(clean_cluster):
    """After kill -9 and a new start of slurmctld, a job that ran is still running."""
    job = submit(clean_cluster, "sleep 600")
    until(lambda: state(clean_cluster, job) == "RUNNING")
    until_cluster_saved(clean_cluster, job)
    clean_cluster.kill_controller()
    assert clean_cluster.status()["daemons"]["slurmctld"] is None
    assert set(clean_cluster.status()["nodes"].values()) == {"unknown"}
    clean_cluster.start_controller()
    assert state(clean_cluster, job) == "RUNNING"


def test_node_comes_back_with_its_job(clean_cluster, tmp_path):
    """After kill -9 and a new start of slurmd, the node is up and its job has run on."""
    job = submit(clean_cluster, f"echo $$ > {tmp_path}/pid; sleep 600", "--nodelist=n3")
    pid = pid_in(tmp_path / "pid")
    clean_cluster.kill_node("n3")
    assert clean_cluster.status()["daemons"]["n3"] is None
    with pytest.raises(DevClusterError, match="not running"):
        clean_cluster.kill_node("n3")
    clean_cluster.start_node("n3")
    clean_cluster.wait_nodes()
    assert alive(pid)
    assert state(clean_cluster, job) == "RUNNING"


def test_daemon_is_not_started_twice(cluster):
    """Starting a running daemon is an error."""
    with pytest.raises(DevClusterError, match="already running"):
        cluster.start_controller()
    with pytest.raises(DevClusterError, match="already running"):
        cluster.start_node("n1")
    with pytest.raises(BadSettingError, match="no node n99"):
        cluster.start_node("n99")


# Down


def owned_by(base):
    """Return the processes that refer to a base directory in any way."""
    sign = str(base)
    return [
        process
        for process in processes.everyone()
        if process.pid != os.getpid()
        and (sign in process.exe or sign in " ".join(process.argv) or sign in process.environ.get("SLURM_CONF", ""))
    ]


def stubborn(tmp_path):
    """A job script that ignores SIGTERM, whose child hides its environment; each leaves its pid."""
    return f"""trap '' TERM; echo $$ > {tmp_path}/shell
        env -i setsid sh -c 'trap "" TERM; echo $$ > {tmp_path}/child; while :; do sleep 1; done' &
        while :; do sleep 1; done"""


def test_down_leaves_no_process_and_no_file(tmp_path):
    """All daemons, running jobs deaf to SIGTERM and their children end; the base is gone; again is no error."""
    base = Path(tempfile.mkdtemp(prefix="msched-"))
    cluster = DevCluster.up(base, Settings(SMALL), owner_pid=os.getpid())
    try:
        submit(cluster, stubborn(tmp_path))
        submit(cluster, "true", "--hold")
        pids = [pid_in(tmp_path / name) for name in ("shell", "child")]
    finally:
        cluster.down()
    assert not [pid for pid in pids if alive(pid)]
    assert not owned_by(base)
    assert not base.exists()
    cluster.down()
    with pytest.raises(NoClusterError):
        DevCluster.attach(base)


def test_down_spares_a_shell_that_only_uses_the_cluster(make_cluster):
    """A process with the cluster's environment that is no job of it lives on."""
    cluster = make_cluster(groups=SMALL)
    with subprocess.Popen(["sleep", "600"], env=cluster.env) as shell:
        try:
            cluster.down()
            assert shell.poll() is None
        finally:
            shell.kill()


def test_two_clusters_are_independent(make_cluster):
    """Clusters on one host have separate ports, jobs and ends."""
    one, two = make_cluster(groups=SMALL), make_cluster(groups=SMALL)
    job = submit(one, "sleep 600")
    until(lambda: state(one, job) == "RUNNING")
    assert two.run("squeue", "-h") == ""
    two.down()
    assert all(one.status()["daemons"].values())
    assert state(one, job) == "RUNNING"


CHILD = """
import sys, time
from pathlib import Path
from metasched.devcluster import DevCluster, NodeGroup, Settings
owner = int(sys.argv[2]) or None
cluster = DevCluster.up(Path(sys.argv[1]), Settings((NodeGroup(count=1, gpus=2),)), owner_pid=owner)
print("up", flush=True)
time.sleep(600)
"""


def launcher(base, owner):
    """A process that brings a cluster up and then waits; `owner` is a pid, or 0 for a cluster without owner."""
    env = os.environ | {"PYTHONPATH": str(Path(metasched.__file__).parents[1])}
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(base), str(owner)], env=env, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"up\n"
    return child


def test_down_after_a_crash_works_from_the_state_file_alone(tmp_path):
    """After kill -9 of the launcher and of every daemon and step daemon, attach and down end the orphaned jobs."""
    base = Path(tempfile.mkdtemp(prefix="msched-"))
    with launcher(base, 0) as child:
        cluster = DevCluster.attach(base)
        try:
            submit(cluster, stubborn(tmp_path))
            shell = pid_in(tmp_path / "shell")
            child.kill()
            daemons = [process for process in processes.everyone() if process.exe.startswith(f"{base}/sbin/")]
            assert {Path(process.exe).name for process in daemons} == {"munged", "slurmctld", "slurmd", "slurmstepd"}
            for process in daemons:
                processes.end(process)
            until(lambda: not any(alive(process.pid) for process in daemons))
            assert alive(shell)
            assert set(DevCluster.attach(base).status()["daemons"].values()) == {None}
        finally:
            DevCluster.attach(base).down()
    assert not alive(shell)
    assert not owned_by(base)
    assert not base.exists()
    end_child(tmp_path)


def end_child(tmp_path):
    """End the child of `stubborn`, which nothing ties to a cluster whose step daemons were killed."""
    with suppress(ProcessLookupError):
        os.kill(int(pid_in(tmp_path / "child")), signal.SIGKILL)


def test_cluster_ends_with_its_owner():
    """When the owner is killed with -9, the cluster is taken down whole."""
    base = Path(tempfile.mkdtemp(prefix="msched-"))
    with subprocess.Popen(["sleep", "600"]) as owner, launcher(base, owner.pid) as child:
        try:
            assert all(DevCluster.attach(base).status()["daemons"].values())
        finally:
            owner.kill()
        until(lambda: not base.exists())
        assert child.poll() is None
        child.kill()
    until(lambda: not owned_by(base))


# As other users, and from unpacked packages

SESSION = """
import json, sys, time
from pathlib import Path
from metasched.devcluster import DevCluster
base, lua = Path(sys.argv[1]), Path(sys.argv[2])
with DevCluster.up(base, job_submit=lua) as cluster:
    out = base / "job.out"
    cluster.run("sbatch", "--wait", "--chdir=/", f"--output={out}", "--gres=gpu:v100:2", "--wrap",
                "id -un; srun printenv CUDA_VISIBLE_DEVICES")
    comment = cluster.run("squeue", "-h", "-t", "all", "-o", "%k").strip()
    cluster.kill_controller()
    cluster.start_controller()
    maps = {name: Path(f"/proc/{pid}/maps").read_text() for name, pid in cluster.status()["daemons"].items()}
    lines = [line for text in maps.values() for line in text.splitlines()]
    libraries = sorted({line.split()[-1] for line in lines if "slurm-wlm" in line})
    print(json.dumps({"out": out.read_text().split(), "comment": comment, "libraries": libraries,
                      "nodes": cluster.status()["nodes"], "mode": oct(base.stat().st_mode & 0o777)}))
assert not base.exists()
"""


def python_for(user, code):
    """A python >= 3.11 that the user can run with the code in `code`, or None."""
    probe = "import sys, metasched.devcluster; assert sys.version_info >= (3, 11)"
    for python in (sys.executable, "/usr/bin/python3"):
        argv = ["runuser", "-u", user, "--", "env", f"PYTHONPATH={code}", python, "-c", probe]
        if (
            Path(python).exists()
            and subprocess.run(argv, cwd="/", capture_output=True, timeout=60, check=False).returncode == 0
        ):
            return python
    return None


@pytest.fixture
def shared_tmp():
    """A short directory that every user can read."""
    with tempfile.TemporaryDirectory(prefix="msched-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


installed = pytest.mark.skipif(
    not shutil.which("slurmctld", path="/usr/sbin:/usr/local/sbin"), reason="Slurm is not installed on this system"
)


@pytest.mark.parametrize("place", [pytest.param("system", marks=installed), "unpacked"])
@pytest.mark.parametrize("user", [None, pytest.param(OTHER_USER, marks=as_root)], ids=["self", "other"])
def test_whole_life_of_a_cluster(shared_tmp, user, place):
    """For both kinds of user and of packages: up, a GPU job with a step, the lua plugin, a new controller, down."""
    code = shared_tmp / "code"
    package = Path(metasched.__file__).parent
    (code / "metasched" / "core").mkdir(parents=True)
    for name in ("__init__.py", "core/__init__.py", "core/errors.py"):
        shutil.copy(package / name, code / "metasched" / name)
    shutil.copytree(
        package / "devcluster", code / "metasched" / "devcluster", ignore=shutil.ignore_patterns("__pycache__")
    )
    lua = shared_tmp / "job_submit.lua"
    lua.write_text(
        'function slurm_job_submit(job, partitions, uid) job.comment = "seen" return slurm.SUCCESS end\n'
        "function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end\n"
        "return slurm.SUCCESS\n"
    )
    home = shared_tmp / "home"
    home.mkdir()
    argv = [sys.executable]
    if user is not None:
        python = python_for(user, code)
        if python is None:
            pytest.skip(f"no python >= 3.11 that {user} can run")
        argv = ["runuser", "-u", user, "--", python]
        os.chown(home, pwd.getpwnam(user).pw_uid, -1)
    env = os.environ | {
        "PYTHONPATH": str(code),
        "METASCHED_SLURM": place,
        "METASCHED_CACHE": str(home / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv += ["-c", SESSION, str(home / "c"), str(lua)]
    done = subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, timeout=700, check=False)
    if place == "unpacked":
        offline_skips(done.stderr)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["out"] == [user or pwd.getpwuid(os.geteuid()).pw_name, "0,1"]
    assert seen["comment"] == "seen"
    assert seen["mode"] == ("0o755" if user is None and os.geteuid() == 0 else "0o700"), "who else can reach munge"
    assert set(seen["nodes"]) == {"n1", "n2", "n3", "n4"}
    names = {Path(path).name for path in seen["libraries"]}
    assert "job_submit_lua.so" in names
    assert "cgroup_v2.so" not in names, "which needs systemd"
    from_cache = [path.startswith(str(home)) for path in seen["libraries"]]
    assert all(from_cache) if place == "unpacked" else not any(from_cache)


@as_root
def test_root_runs_jobs_of_any_user(make_cluster, shared_tmp):
    """On root's cluster another user submits a job, and it runs as that user."""
    cluster = make_cluster(groups=SMALL)
    out = shared_tmp / "out"
    out.mkdir()
    os.chown(out, pwd.getpwnam(OTHER_USER).pw_uid, -1)
    cluster.run(
        "runuser",
        "-u",
        OTHER_USER,
        "--",
        "sbatch",
        "--wait",
        "--chdir=/",
        f"--output={out}/o",
        "--wrap",
        "id -un; srun id -un",
    )
    assert (out / "o").read_text().split() == [OTHER_USER, OTHER_USER]


def test_launcher_of_a_checkout(shared_tmp):
    """`python contrib/devcluster` brings a cluster up, shows it, and takes it down."""
    script = Path(__file__).parents[2] / "contrib" / "devcluster"

    def run(verb):
        argv = [sys.executable, str(script), verb, str(shared_tmp / "c")]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)

    try:
        up = run("up")
        assert f"export SLURM_CONF={shared_tmp}/c/etc/slurm.conf\n" in up.stdout, up.stderr
        assert set(json.loads(run("status").stdout)["nodes"].values()) == {"idle"}
    finally:
        assert run("down").returncode == 0
    missing = run("status")
    assert missing.returncode == 1
    assert "no cluster" in missing.stderr


@as_root
def test_users_read_their_own_jobs_whole(make_cluster):
    """An owner reads the own job whole, another user what is public, and under PrivateData nothing of it."""
    site = Site(make_cluster(job_submit=JOB_SUBMIT, groups=SMALL))
    site.base.chmod(0o755)

    def seen_by(user):
        os.seteuid(pwd.getpwnam(user).pw_uid)
        try:
            status = published_status.read(site.base / "shared")
        finally:
            os.seteuid(0)
        return status.seen, [job.total_steps for job in status.jobs]

    try:
        options = ["--hold", "--parsable", "--chdir=/", "--output=/dev/null", "--gres=gpu:1"]
        tag = "--comment=metasched total_steps=77"
        site.cluster.run("runuser", "-u", OTHER_USER, "--", "sbatch", *options, tag, "--wrap", "sleep 300")
        site.start()
        site.wait(lambda: (status := site.status()) and status.jobs)
        site.wait(lambda: seen_by(OTHER_USER) == ("own", [77]))
        assert seen_by("daemon") == ("public", [None])
        with site.cluster.conf.open("a") as conf:
            conf.write("PrivateData=jobs\n")
        site.cluster.run("scontrol", "reconfigure")
        site.terminate()
        site.start()
        site.wait(lambda: site.status().jobs_are_private)
        site.wait(lambda: seen_by(OTHER_USER) == ("own", [77]))
        assert seen_by("daemon") == ("public", [])
    finally:
        site.close()
