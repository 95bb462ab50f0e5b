"""Queues and optimus against a replay of their rules, and against brute force; each GPU type is on one node."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

import pytest

from metasched.scheduling.engine import run_round
from policies.baselines.fifo import Fifo, FifoParameters
from policies.baselines.las import Las, LasParameters
from policies.baselines.optimus import Optimus
from policies.baselines.srsf import Srsf
from policies.baselines.srtf import ShortestParameters, Srtf
from tests.builders import ByGpus, job, node, snapshot
from tests.oracles.examples import for_examples
from tests.oracles.instances import TYPES, Asked, Instance, ModelSpeed, Nodes
from tests.oracles.simulation import Rounds


@dataclass(frozen=True)
class Queue:
    """Jobs with their remaining seconds times GPUs in two orders, and GPUs by type."""

    jobs: tuple
    gpus: dict

    @property
    def snapshot(self):
        """The round, with one node for each type."""
        return snapshot(self.jobs, [node(kind, count, kind, 64, 1 << 40) for kind, count in self.gpus.items()])


def draw_queue(rng):
    """Up to seven rigid jobs of known, unknown and equal remaining times, some of which cannot run."""
    gpus = {kind: rng.choice((1, 2, 4, 8)) for kind in TYPES[: rng.randint(1, 3)]}
    kinds = tuple(gpus)
    jobs = []
    for i in range(rng.randint(1, 7)):
        speeds = tuple((kind, Fraction(rng.choice((1, 1, 2, 10)))) for kind in kinds)
        attained = rng.choice((0.0, 100.0, 5000.0))
        jobs.append(
            job(
                "abcdefg"[i],
                rng.choice((1, 1, 2, 4, 8, 16)),
                left=rng.choice((None, 1, 10, 10, 1000, rng.randint(1, 500))),
                submitted=float(rng.choice((0, i))),
                gpu_types=rng.choice(((), (), kinds[:1], kinds[-1:], kinds[::-1])),
                cpus_per_unit=0,
                speed=rng.choice((None, ModelSpeed("m", speeds), ModelSpeed("m", speeds))),
                attained={kinds[0]: attained} if attained else {},
                ran_seconds=attained,
                run=int(attained > 0),
            )
        )
    return Queue(tuple(sorted(jobs, key=lambda one: (one.submitted, one.uid))), gpus)


def usable(one, gpus):
    """The types that can hold a job, in its own order; then in any."""
    return [kind for kind in one.gpu_types or gpus if gpus.get(kind, 0) >= one.min_gpus]


def remaining(one, gpus):
    """The job's remaining seconds on its fastest type, as a fraction; infinite where they are not known."""
    kinds = usable(one, gpus)
    if one.speed is None or one.total_steps is None or not kinds:
        return math.inf
    speeds = (one.speed.steps_per_second(kind, (min(one.gpus, gpus[kind]),)) for kind in kinds)
    return Fraction(one.total_steps) / max(map(Fraction, speeds))


KEYS = {
    "fifo": (Fifo(FifoParameters(elastic=False)), lambda one, gpus: 0),
    "backfill": (Fifo(FifoParameters(elastic=False, backfill=True)), lambda one, gpus: 0),
    "srtf": (Srtf(ShortestParameters(elastic=False)), remaining),
    "srsf": (Srsf(ShortestParameters(elastic=False)), lambda one, gpus: remaining(one, gpus) * one.gpus),
    "las": (
        Las(LasParameters(elastic=False, promote_knob=None)),
        lambda one, gpus: (one.attained_service > 3250, one.run == 0),
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_queues_serve_jobs_in_their_order(name):
    """Each job has its first type, or the freest, with enough GPUs left; under fifo others wait behind the first."""
    policy, key = KEYS[name]

    def check(queue):
        targets = run_round(queue.snapshot, policy, None).targets
        free, closed = dict(queue.gpus), set()
        for one in sorted(queue.jobs, key=lambda one: key(one, queue.gpus)):
            options = [kind for kind in usable(one, queue.gpus) if free[kind] >= one.gpus and kind not in closed]
            if not options:
                assert one.uid not in targets
                if name == "fifo":
                    closed |= set(usable(one, queue.gpus))
                continue
            found = targets[one.uid].gpu_type
            if one.gpu_types:
                assert found == options[0]
            else:
                assert found in options
                assert free[found] == max(free[kind] for kind in options)
            assert targets[one.uid].gpus == one.gpus
            free[found] -= one.gpus

    for_examples(draw_queue, check)


def draw_elastic(rng):
    """Up to five elastic jobs on one node, faster with each GPU, but by less and less."""
    gpus = rng.randint(1, 8)
    jobs = []
    for i in range(rng.randint(1, min(5, gpus))):
        speed, gain, speeds = 0, rng.choice((60, 100, 360)), []
        for n in range(1, 9):
            speed += gain
            speeds.append((n, float(speed)))
            gain = gain * rng.choice((0, 30, 60, 100, 100)) // 100
        low = rng.choice((1, 1, 2))
        asked = rng.randint(low, 4)
        high = rng.randint(asked, 8)
        jobs.append(
            job("abcde"[i], asked, low, high, left=rng.choice((10, 1000, 1000, 10**6)), speed=ByGpus(tuple(speeds)))
        )
    return Queue(tuple(jobs), {"v100": gpus})


def test_optimus_has_the_least_sum_of_remaining_times():
    """Where each further GPU saves less than the one before, the greedy choice is the best of all allocations."""

    def check(queue):
        gpus = queue.gpus["v100"]
        if sum(one.min_gpus for one in queue.jobs) > gpus:
            return
        targets = run_round(queue.snapshot, Optimus(), None).targets
        least = {0: 0.0}  # the least sum of remaining times by the GPUs that jobs so far have
        for one in queue.jobs:
            options = {
                n: one.total_steps / one.speed.steps_per_second("v100", (n,))
                for n in range(one.min_gpus, one.max_gpus + 1)
            }
            sums = [
                (used + n, total + seconds)
                for used, total in least.items()
                for n, seconds in options.items()
                if used + n <= gpus
            ]
            least = {used: min(total for at, total in sums if at == used) for used, _ in sums}
        found = sum(
            one.total_steps / one.speed.steps_per_second("v100", (targets[one.uid].gpus,)) for one in queue.jobs
        )
        assert found <= min(least.values()) * (1 + 1e-9)

    for_examples(draw_elastic, check)


@pytest.mark.parametrize("policy", [Srtf(), Srsf(), Fifo()], ids=lambda policy: policy.name)
def test_elastic_queues_grow_in_three_steps(policy):
    """All minima in order, then all requests, then all maxima."""

    def check(queue):
        targets = run_round(queue.snapshot, policy, None).targets
        key = {"fifo": lambda one: 0, "srtf": lambda one: remaining(one, queue.gpus)}
        order = sorted(queue.jobs, key=key.get(policy.name, lambda one: remaining(one, queue.gpus) * one.gpus))
        free, given, closed = queue.gpus["v100"], {}, False
        for one in order:
            if one.min_gpus <= free and not closed:
                given[one.uid] = one.min_gpus
                free -= one.min_gpus
            elif policy.name == "fifo":
                closed = True
        for most in ("gpus", "max_gpus"):
            for one in order:
                if one.uid in given:
                    more = min(getattr(one, most) - given[one.uid], free)
                    given[one.uid] += more
                    free -= more
        assert {uid: place.gpus for uid, place in targets.items()} == given

    for_examples(draw_elastic, check)


def draw_arrivals(rng):
    """Up to five jobs of one GPU: the round of their arrival and the rounds that they need."""
    return [(rng.choice((0, 0, 1, 2, 4, 7)), rng.choice((1, 2, 2, 3, 4))) for _ in range(rng.randint(1, 5))]


@functools.cache
def least_sum(now, left):
    """The least sum of the rounds in which jobs end on one GPU, over all preemptive schedules from a round on."""
    if not left:
        return 0
    choices = []
    for k, (arrival, need) in enumerate(left):
        if arrival <= now:
            others = left[:k] + left[k + 1 :]
            done = now + 1 + least_sum(now + 1, others) if need == 1 else None
            rest = tuple(sorted((*others, (arrival, need - 1))))
            choices.append(least_sum(now + 1, rest) if done is None else done)
    return min(choices) if choices else least_sum(now + 1, left)


@pytest.mark.parametrize("policy", [Srtf(), Srsf()], ids=lambda policy: policy.name)
def test_shortest_remaining_time_has_the_least_average_jct(policy):
    """On one GPU, with arrivals, against all preemptive schedules."""

    def check(arrivals):
        model = ModelSpeed("m", (("v100", Fraction(1)),))
        jobs = [Asked(f"new-{k}", model, steps=600 * need) for k, (_, need) in enumerate(arrivals)]
        instance = Instance((), (Nodes("v100", 1, 1),))
        rounds = Rounds(
            policy, instance, lambda number: [jobs[k] for k, (at, _) in enumerate(arrivals) if at == number]
        )
        rounds.run(8 + sum(need for _, need in arrivals))
        assert sum(rounds.ended.values()) == least_sum(0, tuple(sorted(arrivals)))
        assert len(rounds.ended) == len(jobs)

    for_examples(draw_arrivals, check, fewer, every=2)


def fewer(arrivals):
    """The arrivals without one of them."""
    return [arrivals[:k] + arrivals[k + 1 :] for k in range(len(arrivals))]
