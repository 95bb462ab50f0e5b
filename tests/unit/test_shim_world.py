"""Where a trainer finds its world and its job."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainer_shim.errors import VariableError
from trainer_shim.job import Job, read_job
from trainer_shim.world import World, find_world

SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "9"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "5"}


def test_srun():
    """Under srun the world is the step, and the launching node is the meeting point."""
    found = find_world(SRUN | {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1", "MASTER_PORT": "77"})
    assert found == World(rank=3, size=4, local_rank=1, master=("10.0.0.1", 77))


def test_srun_without_a_port():
    """Every rank of a step derives the same port, and another job's is another one."""
    environ = SRUN | {"MASTER_ADDR": "a"}
    port = find_world(environ).master[1]
    assert find_world(environ | {"SLURM_PROCID": "0"}).master[1] == port
    assert find_world(environ | {"SLURM_JOB_ID": "10"}).master[1] != port
    assert 20_000 <= port < 32_000


def test_torchrun_before_srun():
    """Torchrun's variables win over those of the srun that started torchrun."""
    assert find_world(SRUN | TORCHRUN) == World(rank=1, size=2, local_rank=0, master=("a", 5))


def test_alone():
    """A batch script's own SLURM_PROCID makes no world."""
    assert find_world({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) == World(0, 1, 0, None)


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
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60, check=False).returncode == 0
