"""The other ranks when one rank is killed, hangs, fails or leaves the script."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ports import free_port

TRAIN = Path(__file__).parents[1] / "kills" / "train.py"
LIMIT = 2  # seconds of collective_timeout
DEADLINE = 60.0


class World:
    """Ranks of one trainer."""

    def __init__(self, server, directory):
        self.server = server
        self.directory = directory
        self.pids = []

    def start(self, size, *options, limit=LIMIT):
        port = free_port()
        for rank in range(size):
            environ = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_PORT": port, "METASCHED_RUN": 1}
            environ |= {"MASTER_ADDR": "127.0.0.1", "METASCHED_EXIT_CODE": 85}
            argv = [TRAIN, self.directory, "--collective-timeout", limit, *options]
            environ = {name: str(value) for name, value in environ.items()}
            self.pids.append(self.server.start(argv, environ, self.directory / f"output-{rank}.txt"))
        return self

    def wait_for(self, condition, what):
        end = time.monotonic() + DEADLINE
        while not (found := condition()):
            assert time.monotonic() < end, (what, self.output())
            time.sleep(0.02)
        return found

    def there(self):
        """Wait until the rank is at its point, and the other ranks wait for it."""
        self.wait_for((self.directory / "there-1").exists, "the point")
        time.sleep(0.3)
        return self

    def trained(self, steps):
        log = self.directory / "trained-1-0.jsonl"
        self.wait_for(lambda: log.exists() and len(log.read_text().splitlines()) >= steps, f"{steps} steps")
        return self

    def signal(self, number, *ranks):
        for rank in ranks or range(len(self.pids)):
            os.kill(self.pids[rank], number)

    def code(self, rank):
        self.wait_for(lambda: self.server.exit_code(self.pids[rank]) is not None, f"the end of rank {rank}")
        return self.server.exit_code(self.pids[rank])

    def codes(self, *ranks):
        """The exit codes of the ranks, or of these."""
        return [self.code(rank) for rank in ranks or range(len(self.pids))]

    def output(self, rank=None):
        ranks = range(len(self.pids)) if rank is None else [rank]
        paths = [self.directory / f"output-{rank}.txt" for rank in ranks]
        return "".join(path.read_text() for path in paths if path.exists())

    def kill(self):
        for pid in self.pids:
            if self.server.exit_code(pid) is None:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def world(server, tmp_path):
    made = World(server, tmp_path)
    yield made
    made.kill()


@pytest.mark.parametrize("point", ["body", "vote", "evaluation"])
def test_a_killed_rank_ends_the_others_wherever_they_wait(world, point):
    """The others end at once, and not by the watchdog: in the gradients' exchange, in the vote, in an evaluation."""
    at = 9 if point == "evaluation" else 12
    world.start(3, "--at", point, "--step", at, limit=60).there()
    world.signal(signal.SIGKILL, 1)
    assert world.codes() == [1, -signal.SIGKILL, 1]
    assert "because another rank is gone" in world.output(0)


def test_a_rank_0_that_is_killed_in_a_checkpoint_ends_the_others(world):
    """The other ranks wait for rank 0's decision, and end with an error."""
    world.start(3, "--at", "save", "--rank", 0, "--checkpoint-every", 600, limit=60).trained(12)
    world.signal(signal.SIGUSR2)
    world.there().signal(signal.SIGKILL, 0)
    assert 0 not in world.codes(1, 2)


@pytest.mark.parametrize(("point", "how"), [("body", "loop"), ("vote", "hold")])
def test_ranks_that_wait_for_a_hung_one_end_in_the_stated_time(world, point, how):
    """The waiting ranks log where each rank is, and ask for another run: there is a checkpoint of this generation."""
    world.start(3, "--at", point, "--how", how, "--step", 36).there()
    if how == "hold":
        assert 85 in world.codes(0, 2)
    else:
        assert 85 in world.codes()
    output = world.output()
    found = re.search(r"ends with exit code 85, after (?:[2-9]|[1-5][0-9]) s in .*The ranks: (.*)", output)
    assert found, output
    assert "train.py:" in found[1]
    assert ("1: silent" in found[1]) == (how != "loop")  # the one that loops in its step says so itself
    assert "most recent call first" in output


def test_a_hang_before_the_first_checkpoint_is_a_failure(world):
    """Without a checkpoint another run would hang at the same step, so none is asked for."""
    world.start(2, "--at", "body", "--step", 5, "--checkpoint-every", 600).there()
    assert 75 in world.codes()


def test_ranks_that_wait_for_a_stopped_rank_0_end_too(world):
    """The other ranks end although the process group's store stops with rank 0."""
    world.start(2).trained(36)
    world.signal(signal.SIGSTOP, 0)
    assert world.codes(1) == [85]
    assert "the store does not answer" in world.output(1)


def test_a_suspended_job_is_not_hung(world):
    """The watchdog does not count time in which no rank runs."""
    world.start(2).trained(20)
    world.signal(signal.SIGSTOP)
    time.sleep(2 * LIMIT)
    world.signal(signal.SIGCONT)
    (world.directory / "finish").touch()
    assert world.codes() == [0, 0]


def test_a_checkpoint_may_take_longer_than_the_limit(world):
    """The other ranks wait for rank 0's checkpoint as long as rank 0 is alive."""
    world.start(2, "--at", "save", "--how", "sleep", "--rank", 0, "--step", 9, "--epochs", 1)
    world.wait_for(lambda: "continues to wait" in world.output(1), "the log line of a wait for a checkpoint")
    assert world.server.exit_code(world.pids[1]) is None


def test_the_other_ranks_log_the_first_failure(world):
    """The other ranks log the first failure, from which their own errors follow."""
    world.start(3, "--at", "body", "--how", "raise", limit=60)
    assert world.codes() == [1, 1, 1]
    for rank in (0, 2):
        assert (
            world.output(rank)
            .splitlines()[-1]
            .endswith("the first to fail was rank 1, with ValueError: the script is wrong")
        )


def test_a_rank_that_leaves_the_script_ends_the_others(world):
    """A rank that exits with code 0 in the middle of the training is a failure for the others."""
    world.start(2, "--at", "body", "--how", "leave", limit=60)
    assert world.codes() == [1, 0]


def test_the_scripts_own_code_has_six_limits():
    """The script's own code between two steps, whose collectives may hang, has six times the limit."""
    own_code = """
import time
from trainer_shim.process_groups.watchdog import Watchdog
watchdog = Watchdog(0.1, 0, 2)
watchdog.first_step_done = True
with watchdog.armed("a vote"):
    pass
watchdog.disarm()
time.sleep(60)
"""
    done = subprocess.run(
        [sys.executable, "-c", own_code], cwd=TRAIN.parents[2], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 75
    assert "in the script's own code (<string>:9)" in done.stderr
