"""The faults and the trainings of a campaign, drawn from its seed before anything happens. Pure.

The same seed gives the same lists, and a longer campaign begins with the list of a shorter one. Nothing here depends on
what the cluster answers: which job a fault strikes is drawn as a fraction of the jobs that run at that time.
"""

import random
from itertools import count
from typing import NamedTuple

MEAN_PAUSE = 5.0  # seconds from one fault to the next
LEAST_PAUSE = 0.5
FIRST_FAULT = 12.0  # seconds, in which the first trainers start
POLICY_SECONDS = 30.0
POLICIES = ("las", "fifo", "gandiva_fair", "pollux", "ares", "gavel_las", "srtf", "themis")

POLICY = "next policy"
DAEMON_KILLED, DAEMON_STOPPED = "daemon killed", "daemon stopped"
CONTROLLER_KILLED, CONTROLLER_STOPPED = "slurmctld killed", "slurmctld stopped"
SLURMD_KILLED, SLURMD_STOPPED = "slurmd killed", "slurmd stopped"
NODE_DRAINED, NODE_DOWN, NODE_CRASHED = "node drained", "node set down", "node crashed"
RANK_KILLED, RANK_0_IN_CHECKPOINT, RANKS_KILLED = "rank killed", "rank 0 killed in a checkpoint", "all ranks killed"
RANK_STOPPED = "rank stopped"
WRAPPER_KILLED, WRAPPER_STOPPED = "wrapper killed", "wrapper stopped"
SHELL_KILLED = "batch shell killed"
BATCH_STEPD_KILLED, STEP_STEPD_KILLED = "batch step's slurmstepd killed", "step's slurmstepd killed"
DISK_FULL = "store's disk full"

# How often in a hand of cards, and the least and most seconds until the fault is undone.
KINDS = {
    DAEMON_KILLED: (3, 0.5, 5.0),
    DAEMON_STOPPED: (1, 1.0, 8.0),
    CONTROLLER_KILLED: (3, 0.2, 6.0),
    CONTROLLER_STOPPED: (1, 1.0, 10.0),
    SLURMD_KILLED: (1, 0.5, 10.0),
    SLURMD_STOPPED: (1, 1.0, 10.0),
    NODE_DRAINED: (1, 2.0, 15.0),
    NODE_DOWN: (2, 0.3, 10.0),
    NODE_CRASHED: (1, 0.3, 10.0),
    RANK_KILLED: (1, 0.0, 0.0),
    RANK_0_IN_CHECKPOINT: (1, 0.0, 0.0),
    RANKS_KILLED: (1, 0.0, 0.0),
    RANK_STOPPED: (1, 2.0, 12.0),
    WRAPPER_KILLED: (1, 0.0, 0.0),
    WRAPPER_STOPPED: (1, 2.0, 10.0),
    SHELL_KILLED: (1, 0.0, 0.0),
    BATCH_STEPD_KILLED: (1, 0.0, 0.0),
    STEP_STEPD_KILLED: (1, 0.0, 0.0),
    DISK_FULL: (1, 2.0, 10.0),
}
KILLS_OF_JOBS = frozenset(
    {
        NODE_CRASHED,
        RANK_KILLED,
        RANK_0_IN_CHECKPOINT,
        RANKS_KILLED,
        WRAPPER_KILLED,
        SHELL_KILLED,
        BATCH_STEPD_KILLED,
        STEP_STEPD_KILLED,
    }
)
"""Kinds after which a struck job may end as FAILED: somebody killed it."""
UNNOTICED_BY_SLURM = frozenset({BATCH_STEPD_KILLED, STEP_STEPD_KILLED})
"""Kinds after which Slurm shows the struck job as running although it does not, so that a person has to requeue it."""


class Fault(NamedTuple):
    """One fault: seconds from the start, its kind, a number in [0, 1) that chooses the victim, seconds until undone."""

    at: float
    kind: str
    draw: float
    seconds: float


class Shape(NamedTuple):
    """What one training asks for: its GPUs, the least and most that it can use, and its number of epochs."""

    gpus: int
    least: int
    most: int
    epochs: int


def draw_faults(seed, seconds):
    """The faults of a campaign of so many seconds, in order; policies change in turn at fixed times."""
    return sorted([*_policy_changes(seed, seconds), *draw(KINDS, MEAN_PAUSE, seed, seconds)])


def draw(kinds, mean_pause, seed, seconds):
    """Faults of so many seconds, in order, of kinds with how often each is in a hand, and least and most seconds."""
    dice = random.Random(f"faults {seed}")  # noqa: S311  no secret
    at, cards = FIRST_FAULT, []
    while at < seconds:
        if not cards:
            cards = [kind for kind, (often, _, _) in kinds.items() for _ in range(often)]
            dice.shuffle(cards)
        kind = cards.pop()
        _, least, most = kinds[kind]
        yield Fault(round(at, 3), kind, round(dice.random(), 6), round(dice.uniform(least, most), 3))
        at += LEAST_PAUSE + dice.expovariate(1 / (mean_pause - LEAST_PAUSE))


def _policy_changes(seed, seconds):
    for number in count(1):
        if number * POLICY_SECONDS >= seconds:
            return
        yield Fault(number * POLICY_SECONDS, POLICY, (seed + number) % len(POLICIES) / len(POLICIES), 0.0)


def policy_of(draw):
    """The policy that a change of that draw leads to."""
    return POLICIES[round(draw * len(POLICIES))]


def draw_shapes(seed):
    """What the trainings ask for, one after the other, without end."""
    dice = random.Random(f"trainings {seed}")  # noqa: S311  no secret
    while True:
        gpus = dice.choice((1, 2))
        yield Shape(gpus, dice.randint(1, gpus), dice.randint(gpus, 4), dice.randint(40, 120))
