"""What policies claim, as properties of decisions and of many rounds (Gavel, section 4.4; Tiresias; Ares)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from metasched.scheduling.engine import run_round
from metasched.time_shares.allocation_inputs import allocation_inputs
from metasched.time_shares.policy_base import TimeSharePolicy
from policies.ares.policy import Ares, AresParameters
from policies.baselines.allox import AlloX
from policies.baselines.fifo import Fifo, FifoParameters
from policies.baselines.gandiva import Gandiva
from policies.baselines.gandiva_fair import GandivaFair
from policies.baselines.gavel_fifo import GavelFifo
from policies.baselines.isolated import Isolated
from policies.baselines.las import Las
from policies.baselines.max_sum_throughput import MaxSumThroughput
from policies.baselines.optimus import Optimus
from policies.baselines.slurm import Slurm
from policies.baselines.srsf import Srsf
from policies.baselines.srtf import Srtf
from policies.gavel.policies import (
    GavelFinishTimeFairness,
    GavelFirstCome,
    GavelHierarchical,
    GavelLas,
    GavelMakespan,
    GavelShortestFirst,
    GavelThroughput,
)
from tests.oracles.allocations import RELATIVE, TIME, Allocations, Found
from tests.oracles.examples import for_examples
from tests.oracles.instances import Asked, Instance, ModelSpeed, Nodes, draw_instance, simpler
from tests.oracles.known_faults import marks_of
from tests.oracles.simulation import Rounds

PROGRAMS = {
    "las": GavelLas(),
    "fill": GavelLas(GavelLas.Parameters(fill=True)),
    "hierarchical": GavelHierarchical(),
    "makespan": GavelMakespan(),
    "ftf": GavelFinishTimeFairness(),
    "fcfs": GavelFirstCome(),
    "sjf": GavelShortestFirst(),
    "throughput": GavelThroughput(),
    "max_sum": MaxSumThroughput(),
}
FILLING = PROGRAMS | {
    "isolated": Isolated(),
    "gandiva": Gandiva(),
    "gandiva_fair": GandivaFair(),
    "allox": AlloX(),
    "backfill": Fifo(FifoParameters(backfill=True)),
    "tiresias": Las(),
    "srtf": Srtf(),
    "srsf": Srsf(),
    "optimus": Optimus(),
    "ares": Ares(AresParameters(explore=False)),
}
EVERY = FILLING | {"fifo": Fifo(), "gavel_fifo": GavelFifo(), "slurm": Slurm()}


def known(policies, **faults):
    """Parameters of a test, one for each policy; some policies fail by a fault that is known."""
    return [pytest.param(name, id=name, marks=marks_of(faults.get(name))) for name in policies]


@pytest.mark.parametrize("name", PROGRAMS)
def test_time_shares_are_pareto_efficient(name):
    """No job can have more without less for another, beyond rounding and the preference for early jobs."""

    def check(instance):
        made = Allocations(instance)
        found = Found(made, PROGRAMS[name], instance.snapshot())
        floors = {uid: max(0, value - TIME * made.fastest(uid)) for uid, value in found.throughput.items()}
        gain = {uid: 1 / made.fastest(uid) for uid in made.rate}
        most, _ = made.best(gain, floors)
        assert found.total(gain) >= most * (1 - 2 * RELATIVE) - 10 * TIME

    for_examples(lambda rng: draw_instance(rng, sharing=name != "max_sum"), check, simpler, every=10)


def assert_same(name, instance, one, other):
    """A policy decides the same in two snapshots of an instance; where it solves a program, types may be others."""
    if name in PROGRAMS:
        made = Allocations(instance)
        found = [Found(made, EVERY[name], snapshot).throughput for snapshot in (one, other)]
        if name == "max_sum":  # several divisions may have the largest sum
            one_sum, other_sum = (sum(throughput.values()) for throughput in found)
            assert abs(one_sum - other_sum) <= 2 * RELATIVE * max(one_sum, other_sum)
            return
        assert all(abs(found[0][uid] - found[1][uid]) <= 2 * RELATIVE * made.fastest(uid) for uid in made.rate)
        return
    if isinstance(EVERY[name], TimeSharePolicy):
        every = [EVERY[name].time_shares(allocation_inputs(snapshot), {})[0] for snapshot in (one, other)]
        shares = [{uids: row for uids, row in rows.items() if row} for rows in every]
        assert shares[0].keys() == shares[1].keys()
        assert all(shares[0][key] == pytest.approx(shares[1][key]) for key in shares[0])
    targets = [run_round(snapshot, EVERY[name], None).targets for snapshot in (one, other)]
    amounts = [{uid: (place.gpu_type, place.gpus) for uid, place in row.items()} for row in targets]
    assert amounts[0] == amounts[1]


IMPOSSIBLE = "allocation of impossible jobs"


@pytest.mark.parametrize("name", known(EVERY, isolated=IMPOSSIBLE, gandiva="gandiva pairing"))
def test_jobs_that_can_run_nowhere_change_nothing(name):
    """Neither a job of more GPUs than there are, nor one for a type that the cluster lacks, whatever their number."""

    def check(instance):
        snapshot = instance.snapshot()
        first = snapshot.jobs[0]
        absent = [
            first.evolve(uid=f"absent{i}", gpus=gpus, min_gpus=gpus, max_gpus=gpus, gpu_types=kinds, submitted=at)
            for i, (gpus, kinds, at) in enumerate(((640, (), -1.0), (1, ("h100",), 150.0), (64, (), 1e3)))
        ]
        absent = [one.evolve(placement=None, status=Asked("x", instance.jobs[0].model).job.status) for one in absent]
        jobs = sorted((*snapshot.jobs, *absent), key=lambda one: (one.submitted, one.uid))
        more = replace(snapshot, jobs=tuple(jobs))
        assert_same(name, instance, snapshot, more)

    for_examples(lambda rng: draw_instance(rng, sharing=name != "max_sum", gpus=(1, 4)), check, simpler, every=10)


# gavel_fifo is left out: by its definition, a job waits in vain where another type has enough GPUs for it.
@pytest.mark.parametrize("name", known(FILLING, gandiva_fair="gandiva_fair total", ares="ares on node sets"))
def test_gpus_that_no_job_accepts_change_nothing(name):
    """Nodes of a further type, which no job accepts."""

    def check(instance):
        kinds = tuple(group.gpu_type for group in instance.nodes)
        jobs = tuple(replace(one, accepts=one.accepts or kinds) for one in instance.jobs)
        snapshot = replace(instance, jobs=jobs).snapshot()
        staying = tuple(job if job.gpu_types or not job.gpus else job.evolve(gpu_types=kinds) for job in snapshot.jobs)
        snapshot = replace(snapshot, jobs=staying)
        further = Instance((), (Nodes("h100", 3, 8),)).snapshot().nodes
        more = replace(snapshot, nodes=(*snapshot.nodes, *further))
        assert_same(name, instance, snapshot, more)

    for_examples(draw_instance, check, simpler, every=10)


def draw_endless(rng, **kinds):
    """An instance whose jobs never end."""
    instance = draw_instance(rng, **kinds)
    jobs = (replace(one, steps=None if one.steps is None else 10**12) for one in instance.jobs)
    return replace(instance, jobs=tuple(jobs))


@pytest.mark.parametrize("name", FILLING)
def test_no_gpu_idles_that_a_waiting_job_could_use(name):
    """In ten rounds: no waiting job that can run on a type fits, evenly spread, on the GPUs that are free there."""
    for_examples(draw_endless, lambda instance: check_no_gpu_idles(name, instance), simpler, every=10)


@pytest.mark.parametrize("name", FILLING)
def test_no_gpu_idles_where_nodes_of_a_type_do_not_hold_the_jobs_that_its_gpus_could(name):
    """Three nodes of two GPUs hold a job of three GPUs, or one of two GPUs on one node, and never both."""
    model = ModelSpeed("m", (("v100", Fraction(10)), ("k80", Fraction(14))))
    jobs = (Asked("narrow", model, 2, max_nodes=1), Asked("wide", model, 3))
    check_no_gpu_idles(name, Instance(jobs, (Nodes("v100", 1, 4), Nodes("k80", 3, 2))))


def check_no_gpu_idles(name, instance):
    made = Allocations(instance)
    rounds = Rounds(FILLING[name], instance).run(10)
    for targets in rounds.rounds:
        free = {node.name: node.gpus for node in rounds.nodes}
        hosts = set()
        for place in targets.values():
            if place not in hosts or not instance.sharing:
                for node, gpus in place.node_gpus:
                    free[node] -= gpus
            hosts.add(place)
        for uid, rate in made.rate.items():
            if uid in targets:
                continue
            for kind in rate:
                counts = [gpus for node, gpus in free.items() if node.startswith(kind)]
                assert not fits_free(made.job[uid], counts), f"{uid} waits beside free {kind}: {counts}"


def fits_free(one, free):
    """Whether nodes with so many free GPUs can hold a job, with equally many on each node."""
    most = min(one.gpus, len(free), one.max_nodes or one.gpus)
    return any(one.gpus % k == 0 and sum(count >= one.gpus // k for count in free) >= k for k in range(1, most + 1))


@pytest.mark.parametrize("share", [Fraction(1, 5), Fraction(1, 20), Fraction(1, 100)], ids=["0.2", "0.05", "0.01"])
@pytest.mark.parametrize(
    "churn",
    [
        pytest.param(False, id="steady"),
        pytest.param(True, id="churn", marks=marks_of("small shares")),
    ],
)
def test_a_small_share_has_its_first_turn_in_time(share, churn):
    """A share s first runs within 1/s rounds, and then as often as it should, whatever else comes and goes."""
    model = ModelSpeed("m", (("v100", Fraction(10)), ("k80", Fraction(1))))
    jobs = (
        Asked("light", model, accepts=("v100",), weight=share),
        Asked("heavy", model, accepts=("v100",), weight=1 - share),
    )
    instance = Instance(jobs, (Nodes("v100", 1, 1), Nodes("k80", 1, 1)))

    def newcomers(number):
        return [Asked(f"new{number}", model, accepts=("k80",))]

    count = int(2 / share)
    ran = Rounds(GavelLas(), instance, newcomers if churn else None).run(count).ran("light")
    assert any(ran[: int(1 / share)])
    assert abs(sum(ran) - 2) <= 1


FAIR = {name: FILLING[name] for name in ("las", "fill", "hierarchical", "makespan", "isolated", "gandiva_fair")}


@pytest.mark.parametrize("name", FAIR)
def test_rounds_give_what_time_shares_promise(name):
    """After every number of rounds, no job of one GPU lacks more than three rounds of its promised throughput."""

    def check(instance):
        made = Allocations(instance)
        promised = Found(made, FAIR[name], instance.snapshot(0.0)).throughput
        rounds = Rounds(FAIR[name], instance).run(40)
        received = dict.fromkeys(made.rate, Fraction(0))
        for number, targets in enumerate(rounds.rounds, 1):
            for uid, place in targets.items():
                received[uid] = received.get(uid, 0) + made.rate.get(uid, {}).get(place.gpu_type, 0)
            for uid, value in promised.items():
                assert received[uid] >= value * number - 3 * made.fastest(uid)

    for_examples(lambda rng: draw_endless(rng, gangs=False), check, simpler, every=20)


@pytest.mark.parametrize("fill", [False, True], ids=["las", "fill"])
def test_no_job_is_worse_off_than_with_an_equal_part(fill):
    """Sharing incentive over many rounds: the least relative throughput is at least that of 1/n of all GPUs."""
    policy = GavelLas(GavelLas.Parameters(fill=fill))

    def check(instance):
        jobs = tuple(replace(one, weight=Fraction(1)) for one in instance.jobs)
        even = replace(instance, jobs=jobs)
        made = Allocations(even)
        rounds = Rounds(policy, even).run(40)
        relative = []
        for uid in made.rate:
            places = [targets[uid] for targets in rounds.rounds if uid in targets]
            mean = sum(made.rate[uid][place.gpu_type] for place in places) / Fraction(40)
            relative.append(mean / made.equal(uid))
        apart = [made.isolated(uid) / made.equal(uid) for uid in made.rate]
        assert min(relative, default=0) >= min(apart, default=0) * Fraction(85, 100)

    for_examples(lambda rng: draw_endless(rng, gangs=False), check, simpler, every=20)
