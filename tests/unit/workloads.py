"""Small workloads for the tests of the simulator: trainings of known speed, and a random policy."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from metasched.core.model import Decision, Grant, Node, Preempt
from metasched.core.policy import Policy, PolicyParameters
from metasched.core.reasons import Reason
from metasched.core.retention import is_pinned
from metasched.simulator.records import Failures, Settings, Submission, Workload
from metasched.throughput.training import Pace
from tests import builders


@dataclass(frozen=True)
class Linear:
    """A training whose speed is proportional to the GPUs: a ``Training``.

    Attributes:
        total: steps in all.
        rate: steps per second on each GPU.
        fast: the factor on GPUs of type a100.
        colocated: the factor next to a co-runner.
        every: steps of a regime; every other regime is twice as fast.
        per_gpu: whether the speed grows with the number of GPUs.
    """

    total: float
    rate: float = 1.0
    fast: float = 1.0
    colocated: float = 1.0
    every: float = float("inf")
    per_gpu: bool = True

    def pace(self, done, placement, co_runner=None):
        """The pace by the GPUs, their type, the regime and the co-runner."""
        gpus = placement.gpus if self.per_gpu else 1
        of_type = self.fast if placement.gpu_type == "a100" else 1.0
        regime = int(done // self.every)
        while (regime + 1) * self.every <= done:  # the quotient is rounded, too
            regime += 1
        factor = self.colocated if co_runner is not None else 1.0
        return Pace(self.rate * gpus * of_type * factor * (1 + regime % 2), (regime + 1) * self.every)

    def known(self, done):
        """None: policies know no speed."""
        del done


def nodes(count=2, gpus=4, **more):
    """Nodes n0, n1, ... of one type."""
    return tuple(Node(f"n{i}", "v100", gpus, 16, 64, **more) for i in range(count))


def submission(uid, gpus=1, submitted=0.0, total=100.0, **more):
    """A job that needs ``total`` GPU-seconds, unless a ``training`` says otherwise."""
    costs = {key: more.pop(key) for key in ("start_seconds", "restart_seconds", "checkpoint_seconds") if key in more}
    low, high, training = more.pop("low", gpus), more.pop("high", gpus), more.pop("training", Linear(total))
    return Submission(
        builders.job(uid, gpus, low, high, submitted=submitted, **more),
        training,
        **costs,
    )


def workload(*submissions):
    """The submissions as a workload, by arrival."""
    return Workload("drawn", tuple(sorted(submissions, key=lambda s: (s.job.submitted, s.job.uid))))


class ChaosParameters(PolicyParameters):
    """Parameters of ``Chaos``.

    Attributes:
        seed: of the random choices.
    """

    seed: int = 0


class Chaos(Policy):
    """A policy of random decisions that the contract allows; pure, as choices are hashes of seed, round and job."""

    name = "chaos"
    Parameters = ChaosParameters

    def decide(self, snapshot, state):
        """Grant most jobs any amount in any order, some of them in pairs, and let the others wait."""

        def choice(job, what, choices):
            return zlib.crc32(f"{self.parameters.seed} {snapshot.round} {job.uid} {what}".encode()) % choices

        order = sorted(snapshot.jobs, key=lambda job: (choice(job, "turn", 1000), job.uid))
        grants, waits, alone = [], {}, []
        for job in order:
            if choice(job, "wait", 4) == 0 and not is_pinned(job):
                waits[job.uid] = Reason.text("random")
                continue
            gpus = job.min_gpus + choice(job, "gpus", job.max_gpus - job.min_gpus + 1)
            if is_pinned(job) and job.placement is not None:
                gpus = job.placement.gpus
            grant = Grant(job.uid, gpus, Reason.text("random"))
            host = next((other for other in alone if other.gpus == gpus > 0), None)
            if snapshot.sharing and host is not None and choice(job, "share", 2):
                alone.remove(host)
                grant = replace(grant, co_runner=host.uid)
            else:
                alone.append(grant)
            grants.append(grant)
        return Decision(tuple(grants), (), waits), state


@st.composite
def submissions(draw, index, *, sharing=False):
    """A job of 0 to 8 GPUs that fits two nodes of four; its speed may depend on placement, co-runner and regime."""
    gpus = draw(st.sampled_from((0, 1, 1, 2, 2, 4, 8)))
    low = draw(st.integers(1, gpus)) if gpus else 0
    high = draw(st.sampled_from((gpus, 2 * gpus)))
    preempt = draw(st.sampled_from((Preempt.CHECKPOINT, Preempt.CHECKPOINT, Preempt.SUSPEND, Preempt.NO)))
    training = Linear(
        total=float(draw(st.integers(0, 200))) / draw(st.sampled_from((1, 3, 7))),
        rate=draw(st.sampled_from((1.0, 0.3))),
        fast=draw(st.sampled_from((1.0, 2.5))),
        colocated=draw(st.sampled_from((1.0, 0.6))) if sharing else 1.0,
        every=draw(st.sampled_from((float("inf"), 30.0, 7.1))),
    )
    when = float(draw(st.integers(0, 300))) / draw(st.sampled_from((1, 3)))
    costs = {"restart_seconds": draw(st.sampled_from((None, 0.0, 12.5))), "training": training}
    return submission(f"j{index:02}", gpus, when, low=low, high=high, preempt=preempt, **costs)


@st.composite
def workloads(draw, *, sharing=False):
    """Up to ten jobs."""
    count = draw(st.integers(1, 10))
    return workload(*(draw(submissions(i, sharing=sharing)) for i in range(count)))


@st.composite
def clusters(draw):
    """Two nodes of four GPUs, and up to two others, of two types and on racks or none."""
    more = draw(st.lists(st.sampled_from(("v100", "a100")), max_size=2))
    kinds = ("v100", "v100", *more)
    racks = draw(st.booleans())
    return tuple(Node(f"n{i}", kind, 4, 16, 64, rack=f"r{i % 2}" if racks else None) for i, kind in enumerate(kinds))


@st.composite
def settings(draw, *, failures=True, costs=True):
    """Any behaviour of a cluster under which all jobs end."""
    cost = st.sampled_from((0.0, 3.0, 10.0)) if costs else st.just(0.0)
    return Settings(
        round_seconds=draw(st.sampled_from((60.0, 17.3, 0.1 * 300))),
        min_round_seconds=draw(st.sampled_from((0.0, 5.0))),
        early_rounds=draw(st.booleans()),
        start_seconds=draw(cost),
        restart_seconds=draw(cost),
        checkpoint_seconds=draw(cost),
        checkpoint_every=draw(st.sampled_from((None, 20.0))),
        failures=draw(st.sampled_from((None, Failures(900.0, 70.0)))) if failures else None,
        uneven=draw(st.booleans()),
        sharing=draw(st.booleans()),
        seed=draw(st.integers(0, 3)),
    )
