"""Where a trainer finds its world and its job."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainer_shim.environment.job import Job, read_job
from trainer_shim.environment.torchrun import torchrun_signal_warning, write_exit_code
from trainer_shim.environment.world import Master, World, find_world, launch_warning
from trainer_shim.errors import VariableError

SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "9"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "5"}


def test_srun():
    """Under srun the world is the step, and the launching node is the meeting point."""
    found = find_world(SRUN | {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1", "MASTER_PORT": "77"})
    assert (found.rank, found.size, found.local_rank) == (3, 4, 1)
    assert (found.master.address, found.master.ports[0]) == ("10.0.0.1", 77)


def test_srun_without_a_port():
    """Every rank of a step derives the same ports, and those of another job, step, run or cluster are others."""
    environ = SRUN | {"MASTER_ADDR": "a"}
    master = find_world(environ).master
    assert find_world(environ | {"SLURM_PROCID": "0"}).master == master
    assert find_world(environ | {"SLURM_PROCID": "0", "SLURM_SRUN_COMM_PORT": "7"}).master == master
    for other in ("JOB_ID", "STEP_ID", "RESTART_COUNT", "CLUSTER_NAME", "STEP_LAUNCHER_PORT"):
        different = find_world(environ | {f"SLURM_{other}": "384"}).master
        assert not set(different.ports) & set(master.ports)
        assert different.name != master.name
    assert len(set(master.ports)) > 1
    assert all(20_000 <= port < 32_000 for port in master.ports)


def test_torchrun_before_srun():
    """Torchrun's variables win over those of the srun that started torchrun."""
    assert find_world(SRUN | TORCHRUN) == World(rank=1, size=2, local_rank=0, master=Master("a", (5,)))


def test_alone():
    """A batch script's own SLURM_PROCID makes no world."""
    assert find_world({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) == World(0, 1, 0, None)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, "one process trains in a Slurm job of 4 tasks"),
        (SRUN | {"RANK": "0", "WORLD_SIZE": "1"}, "one of several worlds"),
        (SRUN | TORCHRUN | {"GROUP_WORLD_SIZE": "1"}, "torchrun is started once for each GPU"),
        (SRUN | TORCHRUN | {"GROUP_WORLD_SIZE": "4"}, None),
        (SRUN | {"MASTER_ADDR": "a"}, None),
        ({"SLURM_NTASKS": "1"}, None),
        (TORCHRUN, None),
        ({}, None),
    ],
)
def test_oddities(environ, words):
    """What looks like a mistake is said, and nothing else."""
    said = launch_warning(environ, find_world(environ))
    assert said is None if words is None else words in said


def test_a_signal_that_kills_torchrun():
    """A launcher that neither hears nor ignores the preemption signal is warned of; others, and none, are not."""
    torchrun = {"TORCHELASTIC_RUN_ID": "none"}
    for prelude, expected in [("", True), ("trap '' USR2;", False), ("trap : USR2;", False)]:
        with subprocess.Popen(["sh", "-c", prelude + "echo; read line"], stdin=-1, stdout=-1) as shell:
            shell.stdout.readline()  # the trap is set
            said = torchrun_signal_warning(torchrun, signal.SIGUSR2, shell.pid)
            assert torchrun_signal_warning({}, signal.SIGUSR2, shell.pid) is None
        assert (said is not None) == expected
    assert torchrun_signal_warning(torchrun, signal.SIGUSR2, shell.pid) is None  # it has gone


def test_word_of_an_exit_code(tmp_path):
    """The exit code is left in the file that the wrapper has made, and nowhere else."""
    path = tmp_path / "exit"
    assert not write_exit_code(85, {})
    assert not write_exit_code(85, {"METASCHED_EXIT_FILE": str(path)})
    path.touch()
    assert write_exit_code(85, {"METASCHED_EXIT_FILE": str(path)})
    assert write_exit_code(85, {"METASCHED_EXIT_FILE": str(path)})
    assert path.read_text() == "85\n"


def test_variables():
    """Code that reads torchrun's variables finds them under srun too."""
    assert find_world(TORCHRUN).variables() == TORCHRUN


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"RANK": "0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "'-1'"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM_PROCID"),
    ],
)
def test_half_a_world(environ, word):
    """Half a world is an error that names what is missing."""
    with pytest.raises(VariableError, match=word):
        find_world(environ)


def test_job():
    """The wrapper's variables become a record."""
    environ = {
        "METASCHED_RUN": "2",
        "METASCHED_LEASE": "/l",
        "METASCHED_REPORTS": "/r",
        "METASCHED_EXIT_CODE": "85",
        "METASCHED_SIGNAL": "SIGHUP",
    }
    assert read_job(environ) == Job(2, Path("/l"), Path("/r"), 85, signal.SIGHUP)


def test_no_job():
    """Outside metasched nothing is known, and SIGUSR2 asks to stop."""
    assert read_job({}) == Job(None, None, None, None, signal.SIGUSR2)


@pytest.mark.parametrize(("name", "value"), [("METASCHED_SIGNAL", "USR9"), ("METASCHED_RUN", "two")])
def test_bad_job(name, value):
    """A variable that cannot mean anything is an error that names it."""
    with pytest.raises(VariableError, match=name):
        read_job({name: value})


def test_import_is_cheap():
    """Importing the shim does not import torch."""
    code = "import trainer_shim, sys; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[4]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60, check=False).returncode == 0
