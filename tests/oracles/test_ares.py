"""Ares against generalised processor sharing in fractions, and its bound (Liu et al., 2025, sections 3.2 to 3.5)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest

from metasched.core.model import Placement, Snapshot, Status
from metasched.scheduling.engine import run_round
from policies.ares.policy import Ares, AresParameters
from tests.builders import ByGpus, job, node
from tests.oracles.examples import for_examples
from tests.oracles.known_faults import fails_by, marks_of


@dataclass(frozen=True)
class Arrival:
    """A job with its arrival in seconds, and its demand in GPU-seconds at the requested GPUs; None: not known.

    ``kind`` is the only GPU type that it accepts; ``gpus`` are requested; ``most`` can be used at ``efficiency``.
    """

    uid: str
    at: int
    demand: int | None
    weight: Fraction = Fraction(1)
    kind: str = "v100"
    gpus: int = 1
    most: int = 1
    efficiency: Fraction = Fraction(1)

    @property
    def job(self):
        """The job as a record; at its requested GPUs a step takes a GPU-second."""
        sizes = [self.gpus * 2**k for k in range(8) if self.gpus * 2**k <= self.most]
        known = tuple((n, float(n if n == self.gpus else n * self.efficiency)) for n in sizes)
        return job(
            self.uid,
            self.gpus,
            self.gpus,
            self.most,
            left=self.demand,
            submitted=float(self.at),
            weight=float(self.weight),
            gpu_types=(self.kind,),
            cpus_per_unit=0,
            speed=ByGpus(known, self.kind),
        )


def virtual_finish_times(arrivals, gpus):
    """By uid, the virtual and the real finish time under generalised processor sharing of these GPUs, exactly."""
    finish, real, live = {}, {}, {}
    now = virtual = Fraction(0)
    waiting = sorted(arrivals, key=lambda one: one.at)
    while waiting or live:
        weight = sum(one.weight for one in live.values())
        end = min((finish[uid] for uid in live), default=None)
        ends_at = None if end is None else now + (end - virtual) * weight / gpus
        if waiting and (ends_at is None or waiting[0].at < ends_at):
            one = waiting.pop(0)
            virtual += (one.at - now) * gpus / weight if live else 0
            now = Fraction(one.at)
            finish[one.uid], live[one.uid] = virtual + one.demand / one.weight, one
        else:
            now, virtual = ends_at, end
            for uid in [uid for uid in live if finish[uid] == end]:
                del live[uid]
                real[uid] = now
    return finish, real


class Events:
    """Ares from event to event: a round at every arrival and end, decisions come true at once, restarts cost nothing.

    Attributes:
        ends: seconds at which jobs ended, by uid.
        rounds: at each round, the targets, and the live jobs' uids.
        busy: the longest time in which jobs that can run were live.
    """

    def __init__(self, arrivals, nodes, policy, hopeless=()):
        self.ends, self.rounds, self.busy = {}, [], 0.0
        live, state, now, began = {}, None, 0.0, None
        waiting = sorted((one.job for one in arrivals), key=lambda one: one.submitted)
        while waiting or live:
            if not live:
                now = began = waiting[0].submitted
            while waiting and waiting[0].submitted <= now:
                one = waiting.pop(0)
                live[one.uid] = one
            jobs = sorted((*live.values(), *hopeless), key=lambda one: (one.submitted, one.uid))
            result = run_round(Snapshot(now, len(self.rounds) + 1, 60.0, nodes, tuple(jobs)), policy, state)
            state = result.state
            self.rounds.append((result.targets, set(live)))
            speed = {
                uid: live[uid].speed.steps_per_second(place.gpu_type, place.spread)
                for uid, place in result.targets.items()
            }
            then = min(now + (live[uid].total_steps - live[uid].progress_steps) / rate for uid, rate in speed.items())
            if waiting:
                then = min(then, waiting[0].submitted)
            for uid, one in list(live.items()):
                live[uid] = after(one, result.targets.get(uid), speed.get(uid, 0.0), now, then)
                if live[uid].total_steps - live[uid].progress_steps <= 1e-6 * live[uid].total_steps:
                    self.ends[uid] = then
                    del live[uid]
            now = then
            if not live:
                self.busy = max(self.busy, now - began)


def after(one, place, speed, now, then):
    """A job after some seconds on a placement, or without."""
    if place is None:
        return one.evolve(status=Status.HELD, placement=None, last_placement=one.placement or one.last_placement)
    return one.evolve(
        status=Status.RUNNING,
        placement=place,
        run=max(one.run, 1),
        run_started=one.run_started if one.placement == place else now,
        ran_seconds=one.ran_seconds + then - now,
        progress_steps=one.progress_steps + speed * (then - now),
        attained={place.gpu_type: one.attained.get(place.gpu_type, 0.0) + place.gpus * (then - now)},
    )


WEIGHTS = (*(Fraction(1, 10**k) for k in range(7)), Fraction(1, 2), Fraction(1, 3))


def draw_arrivals(rng, kind="v100", gpus=8, efficiency=(Fraction(1),)):
    """Up to seven jobs that can use all GPUs of a type, with ties of arrival and of demand."""
    weights = WEIGHTS if rng.random() < 0.3 else (Fraction(1), Fraction(1), Fraction(1, 2))
    made = []
    for i in range(rng.randint(1, 7)):
        requested = rng.choice((1, 1, 2, 4, 8))
        made.append(
            Arrival(
                f"{kind}-{i}",
                rng.choice((0, 0, 100, 500, 5000, rng.randint(0, 2000))),
                rng.choice((50, 1000, 1000, 20_000, rng.randint(1, 50_000))),
                rng.choice(weights),
                kind,
                requested,
                gpus,
                rng.choice(efficiency),
            )
        )
    return made


def fewer(arrivals):
    """The arrivals without one of them."""
    for k in range(len(arrivals)):
        if len(arrivals) > 1:
            yield [*arrivals[:k], *arrivals[k + 1 :]]


PLAIN = Ares(AresParameters(explore=False))
NODES = (node("n", 8, "v100", 64, 1 << 40),)
HOPELESS = tuple(
    job(f"hopeless{i}", 64, left=left, submitted=0.0, gpu_types=("v100",), cpus_per_unit=0, speed=ByGpus(((64, 64.0),)))
    for i, left in enumerate((10, 10**6, None, None))
)


def test_the_first_to_finish_under_processor_sharing_is_served_first():
    """In every round, of the live jobs, each of which can use all GPUs, by exact virtual finish times."""

    def check(arrivals):
        finish, _ = virtual_finish_times(arrivals, 8)
        for targets, live in Events(arrivals, NODES, PLAIN).rounds:
            (first,) = targets
            assert finish[first] <= min(finish[uid] for uid in live) * (1 + Fraction(1, 10**9))

    for_examples(draw_arrivals, check, fewer)


def draw_rigid(rng):
    """Up to seven jobs that use as many GPUs as they request, no more and no fewer."""
    sizes = (1, 1, 2, 3, 4, 8)
    return [replace(one, gpus=size, most=size) for one in draw_arrivals(rng) for size in [rng.choice(sizes)]]


def test_jobs_that_cannot_use_all_gpus_are_served_in_the_same_order():
    """Each job in the order of exact virtual finish times runs where earlier ones leave enough GPUs."""

    def check(arrivals):
        finish, _ = virtual_finish_times(arrivals, 8)
        arrival = {one.uid: one for one in arrivals}
        for targets, live in Events(arrivals, NODES, PLAIN).rounds:
            free, expected = 8, set()
            for uid in sorted(live, key=lambda uid: (finish[uid], arrival[uid].at, uid)):
                if arrival[uid].gpus <= free:
                    free -= arrival[uid].gpus
                    expected.add(uid)
            assert set(targets) == expected

    for_examples(draw_rigid, check, fewer)


def assert_bound(arrivals, events, gpus, alpha):
    """No job ends later than under processor sharing by more than (1/alpha - 1) longest busy periods (Theorem 1)."""
    _, real = virtual_finish_times(arrivals, gpus)
    for one in arrivals:
        assert events.ends[one.uid] <= float(real[one.uid]) + (1 / alpha - 1) * events.busy + 1e-3


@fails_by("ares growth")
def test_the_first_job_grows_on_gpus_of_later_ones():
    """As much as if it did not run yet: on all eight, and not on six, at which its speed is not known."""
    first, later = Arrival("first", 0, 40_000, most=8).job, Arrival("later", 1, 40_000, gpus=2, most=2).job
    place = {uid: Placement(("n",), gpus, "v100") for uid, gpus in (("first", 4), ("later", 2))}
    jobs = [after(one, place[one.uid], 0.0, 0.0, 0.0) for one in (first, later)]
    for present in (after(first, None, 0.0, 0.0, 0.0), jobs[0]):
        targets = run_round(Snapshot(60.0, 2, 60.0, NODES, (present, jobs[1])), PLAIN, None).targets
        assert {uid: place.gpus for uid, place in targets.items()} == {"first": 8}


ALPHAS = pytest.mark.parametrize("alpha", [1.0, 0.75, 0.6])


@ALPHAS
def test_theorem_1_bounds_every_delay(alpha):
    """Jobs can use all GPUs, each at alpha of its speed or better; restarts cost nothing."""
    efficiency = (Fraction(1), Fraction(alpha))

    def check(arrivals):
        policy = Ares(AresParameters(alpha=alpha, explore=False))
        assert_bound(arrivals, Events(arrivals, NODES, policy), 8, alpha)

    for_examples(lambda rng: draw_arrivals(rng, efficiency=efficiency), check, fewer, every=2)


@fails_by("ares on node sets")
@pytest.mark.parametrize("alpha", [1.0, 0.75])
def test_theorem_1_holds_beside_jobs_that_can_run_nowhere(alpha):
    """Jobs of more GPUs than there are, whether their demand is known or not, delay nobody."""
    efficiency = (Fraction(1), Fraction(alpha))

    def check(arrivals):
        policy = Ares(AresParameters(alpha=alpha, explore=False))
        assert_bound(arrivals, Events(arrivals, NODES, policy, HOPELESS), 8, alpha)

    for_examples(lambda rng: draw_arrivals(rng, efficiency=efficiency), check, fewer, every=4)


def types_apart(arrivals):
    """The arrivals of each GPU type."""
    return [[one for one in arrivals if one.kind == kind] for kind in ("v100", "k80")]


@fails_by("ares on node sets")
@pytest.mark.parametrize("alpha", [1.0, 0.75])
def test_theorem_1_holds_on_each_of_two_types(alpha):
    """Jobs that accept one of two types share its GPUs alone, at the weights of its jobs alone."""
    efficiency = (Fraction(1), Fraction(alpha))
    nodes = (*NODES, node("m", 4, "k80", 64, 1 << 40))

    def draw(rng):
        return [*draw_arrivals(rng, efficiency=efficiency), *draw_arrivals(rng, "k80", 4, efficiency)]

    def check(arrivals):
        arrivals = [one for one in arrivals if one.gpus <= one.most]
        events = Events(arrivals, nodes, Ares(AresParameters(alpha=alpha, explore=False)), HOPELESS)
        for mine, gpus in zip(types_apart(arrivals), (8, 4), strict=True):
            assert_bound(mine, events, gpus, alpha)

    for_examples(draw, check, fewer, every=4)


def draw_pool(rng):
    """Jobs of one GPU of known and unknown demand, enough of each for all GPUs of two types."""
    weights = (Fraction(1), Fraction(1), Fraction(1, 2), Fraction(1, 4))
    return [
        Arrival(f"{kind}-{demand}-{i}", 0, demand, rng.choice(weights), kind)
        for kind, gpus in (("v100", 8), ("k80", 4))
        for demand in (100, None)
        for i in range(rng.randint(gpus, gpus + 3))
    ]


@pytest.mark.parametrize("alone", [True, pytest.param(False, marks=marks_of("ares on node sets"))])
def test_jobs_of_unknown_demand_have_gpus_by_their_weight(alone):
    """Of each type, in proportion to their weight among the jobs that can use it, rounded up."""
    nodes = (*NODES, node("m", 4, "k80", 64, 1 << 40))

    def check(arrivals):
        arrivals = [one for one in arrivals if one.kind == "v100" or not alone]
        jobs = [one.job for one in arrivals] + ([] if alone else list(HOPELESS))
        ordered = tuple(sorted(jobs, key=lambda one: (one.submitted, one.uid)))
        targets = run_round(Snapshot(0.0, 1, 60.0, nodes[:1] if alone else nodes, ordered), PLAIN, None).targets
        for kind, gpus in (("v100", 8), ("k80", 4)):
            mine = [one for one in arrivals if one.kind == kind]
            if mine:
                unknown = sum(one.weight for one in mine if one.demand is None)
                expected = math.ceil(gpus * unknown / sum(one.weight for one in mine))
                assert sum(1 for one in mine if one.demand is None and one.uid in targets) == expected

    for_examples(draw_pool, check)
