"""The experiments of Gavel's sections 7.3 to 7.5; each yields the lines of the table for one headline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import fmean

import numpy as np

from contrib.reproductions.demand import EXACT, HALF, UNKNOWN, UNPREDICTABLE, WRONG, Demand
from contrib.reproductions.gavel_fluid_limit import agnostic_limit, fluid_limit
from contrib.reproductions.gavel_workloads import (
    BELOW_LIMIT,
    PRICES,
    TYPES,
    Arrivals,
    Line,
    Scale,
    fixed_rounds,
    jct_by_position,
    ratio,
    run,
    run_window,
)
from contrib.reproductions.measured_runs import HOUR, without_quanta
from metasched.core.model import Job, Node, Snapshot
from metasched.core.policy import Policy
from metasched.simulator.generate.gavel import GavelWorkloadParameters, gavel_jobs
from metasched.simulator.records import Settings, Submission, Workload
from metasched.throughput.throughput_table import TableTraining
from metasched.time_shares.allocation_inputs import allocation_inputs
from metasched.time_shares.policy_base import TimeSharePolicy
from policies.ares.policy import Ares
from policies.baselines.allox import AlloX
from policies.baselines.gandiva import Gandiva
from policies.baselines.gavel_fifo import GavelFifo, GavelFifoParameters
from policies.baselines.isolated import Isolated
from policies.baselines.srtf import Srtf
from policies.gavel.policies import (
    GavelCost,
    GavelCostParameters,
    GavelFinishTimeFairness,
    GavelFirstCome,
    GavelLas,
    GavelLasParameters,
    GavelMakespan,
    GavelParameters,
    GavelThroughput,
)

DAY = 24 * HOUR
FIFO_RATE = 5.2  # jobs/h: the load at which the public code's runs have the paper's ratios
FTF_RATE = 5.6  # jobs/h: likewise, for finish-time fairness
LATE_ROUNDS = 5  # 30 minutes, the longest delay of time shares that section 7.4 tolerates
RESTART = 60.0  # seconds
RESTARTS = f"restarts of {RESTART:g} s"
NODE_GPUS = 6  # for the experiment on placement: on each node a job of 4 GPUs leaves 2, too few for another one


def limits(scale: Scale) -> Iterator[Line]:
    """The loads that the cluster can serve at all; see ``gavel_fluid_limit``."""
    for multiple in (False, True):
        what = f"fluid limit, {'multiple' if multiple else 'single'}:"
        for words, sharing in (("without sharing", False), ("with sharing", True)):
            limit = fluid_limit(scale.table, scale.paper_gpus, multiple=multiple, sharing=sharing)
            yield Line(f"{what} aware, {words}", "", (limit,), "jobs/h")
        limit = agnostic_limit(scale.table, scale.paper_gpus, multiple=multiple)
        yield Line(f"{what} equal time on all types", "", (limit,), "jobs/h")


def las(scale: Scale) -> Iterator[Line]:
    """Figure 9, also with time shares that take effect late (section 7.4)."""
    yield from _las(scale, 5.6, "3.5", ("28.96", "3.31", "2.17"), multiple=False)


def las_multiple(scale: Scale) -> Iterator[Line]:
    """Figure 10: as Figure 9, with jobs of several GPUs."""
    yield from _las(scale, 2.6, "2.2", ("36.44", "1.94", "1.98"), multiple=True)


def _las(scale: Scale, rate: float, paper: str, public: Sequence[str], *, multiple: bool) -> Iterator[Line]:
    """The lines of one workload under max-min fairness."""
    policies: dict[str, tuple[Policy, Settings]] = {
        "aware": (GavelLas(), fixed_rounds()),
        "agnostic": (GavelLas(GavelLasParameters(aware=False)), fixed_rounds()),
        "aware, restarts": (GavelLas(), fixed_rounds(restart=RESTART)),
        "shared": (GavelLas(), fixed_rounds(sharing=True)),
        "gandiva": (Gandiva(), fixed_rounds(sharing=True)),
    }
    if not multiple:
        late = GavelLas(GavelLasParameters(recompute_rounds=LATE_ROUNDS))
        policies |= {
            "allox": (AlloX(), fixed_rounds()),
            "late": (late, fixed_rounds()),
            "aware, no quanta": (without_quanta(GavelLas), fixed_rounds(restart=RESTART)),
        }
    found = _jcts(scale, rate, policies, multiple=multiple)
    what = f"LAS, {'multiple' if multiple else 'single'}, {rate:g} jobs/h:"
    yield Line(f"{what} average JCT, aware", "", found["aware"], "h", public=public[0])
    yield Line(f"{what} average JCT, aware, {RESTARTS}", "", found["aware, restarts"], "h")
    if not multiple:
        yield Line(f"{what} average JCT, aware, {RESTARTS}, no quanta", "", found["aware, no quanta"], "h")
    yield Line(f"{what} agnostic / aware", paper, ratio(found["agnostic"], found["aware"]), public=public[1])
    yield Line(
        f"{what} Gandiva / aware with sharing", "2.2", ratio(found["gandiva"], found["shared"]), public=public[2]
    )
    if not multiple:
        yield Line(f"{what} aware / AlloX", "about 1", ratio(found["aware"], found["allox"]), public="1.14")
        minutes = f"time shares {LATE_ROUNDS * 360 // 60} minutes late"
        yield Line(f"{what} {minutes} / at once", "", ratio(found["late"], found["aware"]))
        yield Line(f"{what} agnostic / {minutes}", "more than 1", ratio(found["agnostic"], found["late"]))


def _jcts(
    scale: Scale, rate: float, policies: Mapping[str, tuple[Policy, Settings]], *, multiple: bool = False
) -> Mapping[str, tuple[float, ...]]:
    """The average JCTs in hours, one for each seed, of some policies on the same jobs."""
    found: dict[str, tuple[float, ...]] = dict.fromkeys(policies, ())
    for seed in scale.seeds:
        arrivals = scale.arriving(rate, seed, multiple=multiple)
        for name, (policy, settings) in policies.items():
            found[name] += (scale.jct(arrivals, policy, settings),)
    return found


def stable(scale: Scale) -> Iterator[Line]:
    """Ratios at loads that all compared policies can serve, so that they do not depend on the window."""
    limit = agnostic_limit(scale.table, scale.paper_gpus, multiple=False)
    rate = BELOW_LIMIT * limit
    policies: dict[str, tuple[Policy, Settings]] = {
        "aware": (GavelLas(), fixed_rounds()),
        "agnostic": (GavelLas(GavelLasParameters(aware=False)), fixed_rounds()),
        "aware, restarts": (GavelLas(), fixed_rounds(restart=RESTART)),
        "agnostic, restarts": (GavelLas(GavelLasParameters(aware=False)), fixed_rounds(restart=RESTART)),
        "aware, no quanta": (without_quanta(GavelLas), fixed_rounds(restart=RESTART)),
    }
    found = _jcts(scale, rate, policies)
    what = f"LAS, single, {BELOW_LIMIT:g} of the limit with equal time on all types ({rate:.2f} jobs/h):"
    yield Line(f"{what} average JCT, aware", "", found["aware"], "h")
    yield Line(f"{what} average JCT, aware, {RESTARTS}", "", found["aware, restarts"], "h")
    yield Line(f"{what} average JCT, aware, {RESTARTS}, no quanta", "", found["aware, no quanta"], "h")
    yield Line(f"{what} agnostic / aware", "", ratio(found["agnostic"], found["aware"]))
    yield Line(f"{what} agnostic / aware, {RESTARTS}", "", ratio(found["agnostic, restarts"], found["aware, restarts"]))


def sharing(scale: Scale) -> Iterator[Line]:
    """GPU sharing below the limit of the cluster without it, and below its own limit."""
    policies: dict[str, tuple[Policy, Settings]] = {
        "without": (GavelLas(), fixed_rounds()),
        "with": (GavelLas(), fixed_rounds(sharing=True)),
        "without, restarts": (GavelLas(), fixed_rounds(restart=RESTART)),
        "with, restarts": (GavelLas(), fixed_rounds(sharing=True, restart=RESTART)),
    }
    rate = BELOW_LIMIT * fluid_limit(scale.table, scale.paper_gpus, multiple=False, sharing=False)
    found = _jcts(scale, rate, policies)
    what = f"LAS, single, {BELOW_LIMIT:g} of the limit without sharing ({rate:.2f} jobs/h):"
    yield Line(f"{what} average JCT, without sharing", "", found["without"], "h")
    yield Line(f"{what} without sharing / with it", "more", ratio(found["without"], found["with"]))
    yield Line(f"{what} average JCT, without sharing, {RESTARTS}", "", found["without, restarts"], "h")
    restarts = ratio(found["without, restarts"], found["with, restarts"])
    yield Line(f"{what} without sharing / with it, {RESTARTS}", "more", restarts)
    rate = BELOW_LIMIT * fluid_limit(scale.table, scale.paper_gpus, multiple=False, sharing=True)
    found = _jcts(scale, rate, {name: policies[name] for name in ("with", "with, restarts")})
    what = f"LAS, single, {BELOW_LIMIT:g} of the limit with sharing ({rate:.2f} jobs/h):"
    yield Line(f"{what} average JCT, with sharing", "", found["with"], "h")
    yield Line(f"{what} average JCT, with sharing, {RESTARTS}", "", found["with, restarts"], "h")


def demand(scale: Scale) -> Iterator[Line]:
    """Policies that need the jobs' demand, where it is wrong or not known, below the limits of their loads.

    SRTF and Ares do not divide the GPU types among the jobs by speeds, so they serve lower loads than the others.
    """
    rate = BELOW_LIMIT * fluid_limit(scale.table, scale.paper_gpus, multiple=False, sharing=False)
    yield from _demand(scale, rate, {"finish-time fairness": GavelFinishTimeFairness(), "AlloX": AlloX()})
    rate = BELOW_LIMIT * agnostic_limit(scale.table, scale.paper_gpus, multiple=False)
    yield from _demand(scale, rate, {"SRTF": Srtf(), "Ares": Ares()})


def _demand(scale: Scale, rate: float, policies: Mapping[str, Policy]) -> Iterator[Line]:
    """The lines of policies at one load, after that of LAS, which needs no demand."""
    what = f"demand, single, {rate:.2f} jobs/h:"
    yield Line(f"{what} LAS, average JCT", "", _jcts(scale, rate, {"las": (GavelLas(), fixed_rounds())})["las"], "h")
    for name, policy in policies.items():
        found: dict[Demand, tuple[float, ...]] = {}
        for known in (EXACT, WRONG, HALF, UNKNOWN, *((UNPREDICTABLE,) if isinstance(policy, Ares) else ())):
            for seed in scale.seeds:
                arrivals = scale.arriving(rate, seed)
                if known != EXACT:
                    words = f"{arrivals.words}, demand {known.name}"
                    arrivals = replace(arrivals, words=words, changed=partial(known.known, seed=seed))
                found[known] = (*found.get(known, ()), scale.jct(arrivals, policy))
        yield Line(f"{what} {name}, average JCT, exact", "", found.pop(EXACT), "h")
        for known, times in found.items():
            yield Line(f"{what} {name}, average JCT, {known.name}", "", times, "h")


def ftf(scale: Scale) -> Iterator[Line]:
    """Finish-time fairness at the load of Figure 9, with and without deficits that are carried over."""
    yield from _ftf(scale, FTF_RATE, ("30.47", "2.81", "2.78"), multiple=False)
    plain = GavelFinishTimeFairness(GavelParameters(carry=False))
    times = tuple(scale.jct(scale.arriving(FTF_RATE, seed), plain) for seed in scale.seeds)
    yield Line(f"finish-time fairness, single, {FTF_RATE:g} jobs/h: average JCT, aware, no deficits", "", times, "h")


def ftf_multiple(scale: Scale) -> Iterator[Line]:
    """Figure 11: finish-time fairness, with jobs of several GPUs."""
    yield from _ftf(scale, 2.6, ("33.90", "1.90", "1.77"), multiple=True)


def _ftf(scale: Scale, rate: float, public: Sequence[str], *, multiple: bool) -> Iterator[Line]:
    """The lines of one workload; rho is a job's JCT over its JCT under equal shares, as in the public code's runs."""
    times: dict[str, list[float]] = {}
    rhos: dict[str, list[float]] = {}
    policies = {
        "aware": GavelFinishTimeFairness(),
        "agnostic": GavelFinishTimeFairness(GavelParameters(aware=False)),
    }
    for seed in scale.seeds:
        arrivals = scale.arriving(rate, seed, multiple=multiple)
        isolated = cache(partial(_jct_by_position, scale, arrivals, Isolated()))
        for name, policy in policies.items():
            simulated = cache(partial(_jct_by_position, scale, arrivals, policy))
            found = scale.figures(arrivals.words, policy, fixed_rounds(), partial(_mean_jct, simulated))
            times.setdefault(name, []).append(found["jct"])
            rho = partial(_mean_rho, simulated, isolated)
            found = scale.figures(f"{arrivals.words}, rho", policy, fixed_rounds(), rho)
            rhos.setdefault(name, []).append(found["rho"])
    restarts = {"aware": (policies["aware"], fixed_rounds(restart=RESTART))}
    with_restarts = _jcts(scale, rate, restarts, multiple=multiple)["aware"]
    what = f"finish-time fairness, {'multiple' if multiple else 'single'}, {rate:g} jobs/h:"
    yield Line(f"{what} average JCT, aware", "", tuple(times["aware"]), "h", public=public[0])
    yield Line(f"{what} average JCT, aware, {RESTARTS}", "", with_restarts, "h")
    yield Line(f"{what} average JCT, agnostic / aware", "3", ratio(times["agnostic"], times["aware"]), public=public[1])
    yield Line(f"{what} average rho, agnostic / aware", "2.8", ratio(rhos["agnostic"], rhos["aware"]), public=public[2])


def _jct_by_position(scale: Scale, arrivals: Arrivals, policy: Policy) -> Mapping[int, float]:
    return jct_by_position(run_window(arrivals, scale.nodes(), policy, scale.window)[0], scale.window)


def _mean_jct(simulated: Callable[[], Mapping[int, float]]) -> dict[str, float]:
    """The average of the JCTs in hours that are ``simulated``."""
    return {"jct": fmean(simulated().values())}


def _mean_rho(
    simulated: Callable[[], Mapping[int, float]], isolated: Callable[[], Mapping[int, float]]
) -> dict[str, float]:
    """The average rho of the JCTs that are ``simulated``, against ``isolated`` ones."""
    alone = isolated()
    return {"rho": fmean(time / alone[i] for i, time in simulated().items() if i in alone)}


def makespan(scale: Scale) -> Iterator[Line]:
    """The makespans in section 7.3."""
    found: dict[str, list[float]] = {}
    for seed in scale.seeds:
        workload = gavel_jobs(scale.table, GavelWorkloadParameters(jobs=scale.batch, multiple=True), seed)
        for name, policy, sharing in (
            ("fifo", GavelFifo(GavelFifoParameters(aware=False)), False),
            ("gandiva", Gandiva(), True),
            ("aware", GavelMakespan(), False),
            ("shared", GavelMakespan(), True),
        ):
            simulated = partial(_makespan, workload, scale.nodes(), policy, sharing=sharing)
            words = f"{scale.batch} jobs at once, seed {seed}"
            figures = scale.figures(words, policy, fixed_rounds(sharing=sharing), simulated)
            found.setdefault(name, []).append(figures["seconds"])
    jobs = f"makespan of {scale.batch} jobs"
    yield Line(f"{jobs}: FIFO / aware", "2.5", ratio(found["fifo"], found["aware"]), public="2.52")
    yield Line(f"{jobs}: Gandiva / aware", "1.4", ratio(found["gandiva"], found["aware"]), public="1.56")
    yield Line(f"{jobs}: aware / aware with sharing", "1.08", ratio(found["aware"], found["shared"]), public="1.01")


def _makespan(workload: Workload, nodes: Sequence[Node], policy: Policy, *, sharing: bool) -> dict[str, float]:
    return {"seconds": run(workload, nodes, policy, sharing=sharing)[0].ended}


def fifo(scale: Scale) -> Iterator[Line]:
    """FIFO in section 7.3: the authors' greedy policy, and the linear program of section 4.2."""
    policies: dict[str, tuple[Policy, Settings]] = {
        "agnostic": (GavelFifo(GavelFifoParameters(aware=False)), fixed_rounds()),
        "greedy": (GavelFifo(), fixed_rounds()),
        "greedy, restarts": (GavelFifo(), fixed_rounds(restart=RESTART)),
        "program": (GavelFirstCome(), fixed_rounds()),
        "program, restarts": (GavelFirstCome(), fixed_rounds(restart=RESTART)),
        "shared": (GavelFirstCome(), fixed_rounds(sharing=True)),
    }
    found = _jcts(scale, FIFO_RATE, policies)
    load = f"FIFO, single, {FIFO_RATE:g} jobs/h"
    yield Line(f"{load}: average JCT, aware, greedy", "", found["greedy"], "h", public="56.69")
    yield Line(f"{load}: average JCT, aware, greedy, {RESTARTS}", "", found["greedy, restarts"], "h")
    yield Line(f"{load}: agnostic / aware, greedy", "2.7", ratio(found["agnostic"], found["greedy"]), public="2.68")
    yield Line(f"{load}: average JCT, aware, linear program", "", found["program"], "h")
    yield Line(f"{load}: average JCT, aware, linear program, {RESTARTS}", "", found["program, restarts"], "h")
    yield Line(f"{load}: agnostic / aware, linear program", "", ratio(found["agnostic"], found["program"]))
    yield Line(
        f"{load}: agnostic / aware with sharing, linear program",
        "3.8",
        ratio(found["agnostic"], found["shared"]),
        public="3.98",
    )


def priorities(scale: Scale) -> Iterator[Line]:
    """A fifth of the jobs with five times the weight; policy and load are those of the public code's runs."""
    high: dict[bool, list[float]] = {}
    low: dict[bool, list[float]] = {}
    for seed in scale.seeds:
        arrivals = scale.arriving(2.4, seed, multiple=True, weights=True)
        for aware in (True, False):
            policy = GavelLas(GavelLasParameters(aware=aware, fill=True))
            simulated = partial(_jct_by_weight, scale, arrivals, policy)
            found = scale.figures(f"{arrivals.words}, by weight", policy, fixed_rounds(), simulated)
            high.setdefault(aware, []).append(found["high"])
            low.setdefault(aware, []).append(found["low"])
    what = "LAS with priorities, multiple, 2.4 jobs/h:"
    yield Line(f"{what} high, agnostic / aware", "1.5", ratio(high[False], high[True]), public="1.53")
    yield Line(f"{what} low, agnostic / aware", "2.7", ratio(low[False], low[True]), public="2.69")


def _jct_by_weight(scale: Scale, arrivals: Arrivals, policy: Policy) -> dict[str, float]:
    """The average JCTs in hours of the jobs with the larger and with the smaller weight."""
    weights = [one.job.weight for one in arrivals.first(scale.window.stop).submissions]
    times = _jct_by_position(scale, arrivals, policy)
    return {
        "high": fmean(time for i, time in times.items() if weights[i] == 1.0),
        "low": fmean(time for i, time in times.items() if weights[i] < 1.0),
    }


def cost(scale: Scale) -> Iterator[Line]:
    """Cost and missed SLOs of ResNet-50 and A3C jobs with deadlines."""
    spent: dict[str, list[float]] = {}
    late: dict[str, list[float]] = {}
    for seed in scale.seeds:
        workload = _deadlines(scale, seed)
        for name, policy in (
            ("throughput", GavelThroughput()),
            ("literal", GavelCost(GavelCostParameters(prices=PRICES, slos=False, together=True))),
            ("cost", GavelCost(GavelCostParameters(prices=PRICES, slos=False, together=False))),
            ("slos", GavelCost(GavelCostParameters(prices=PRICES, together=False))),
            ("together", GavelCost(GavelCostParameters(prices=PRICES, together=True))),
        ):
            words = f"{scale.batch} jobs with SLOs, seed {seed}"
            simulated = partial(_cost, workload, scale.nodes(), policy)
            found = scale.figures(words, policy, fixed_rounds(), simulated)
            spent.setdefault(name, []).append(found["cost"])
            late.setdefault(name, []).append(found["late"])
    for name, words, paper, violated in (
        ("literal", "least cost of all together, without SLOs", "1.4", "35"),
        ("cost", "least cost of each, without SLOs", "1.4", "35"),
        ("slos", "least cost of each", "1.2", "0"),
        ("together", "least cost of all together", "1.2", "0"),
    ):
        yield Line(f"cost: most throughput / {words}", paper, ratio(spent["throughput"], spent[name]))
        yield Line(f"cost: SLOs violated, {words}", violated, tuple(late[name]), "%")
    yield Line("cost: SLOs violated, most throughput", "", tuple(late["throughput"]), "%")


def _cost(workload: Workload, nodes: Sequence[Node], policy: Policy) -> dict[str, float]:
    """The cost in $, and the percentage of jobs that miss their SLO."""
    outcome, metrics = run(workload, nodes, policy)
    slo = {one.job.uid: one.job.slo_seconds or 0.0 for one in workload.submissions}
    over = [job.jct is None or job.jct > slo[job.uid] for job in outcome.jobs]
    return {"cost": metrics.cost or 0.0, "late": 100 * fmean(over)}


def _deadlines(scale: Scale, seed: int) -> Workload:
    """Jobs of 0.5 to 8 days on a V100, with SLOs of 1.2 to 10 times that, which keep a third of the GPUs busy.

    There are as many of ResNet-50 as of A3C, though the table has several batch sizes of ResNet-50.
    """
    rng = np.random.default_rng(seed)
    families = [[m for m in scale.table.models if m.startswith(name)] for name in ("ResNet-50", "A3C")]
    times = math.lcm(*map(len, families))
    models = [model for family in families for model in family * (times // len(family))]
    days = (0.5, 1.0, 2.0, 4.0, 8.0)
    rate = len(TYPES) * scale.gpus / 3 / (24 * fmean(days))
    parameters = GavelWorkloadParameters(jobs=scale.batch, jobs_per_hour=rate, models=tuple(models))
    made = gavel_jobs(scale.table, parameters, seed)
    submissions = []
    for one in made.submissions:
        model, seconds = one.job.name, DAY * float(rng.choice(days))
        speed = scale.table.speed(model, "v100", (1,)) or 0.0
        job = one.job.evolve(slo_seconds=seconds * float(rng.choice((1.2, 2.0, 10.0))))
        submissions.append(Submission(job, TableTraining(scale.table, model, seconds * speed)))
    return replace(made, submissions=tuple(submissions))


def placement(scale: Scale) -> Iterator[Line]:
    """Section 3.1: consolidated and unconsolidated GPUs as two worker types, on nodes on which they differ."""
    found: dict[bool, list[float]] = {}
    nodes = tuple(
        Node(f"{gpu_type}-{number}", gpu_type, NODE_GPUS, cpus=0, memory=0)
        for gpu_type in TYPES
        for number in range(max(round(scale.gpus / NODE_GPUS), 2))
    )
    for seed in scale.seeds:
        arrivals = scale.arriving(2.0, seed, multiple=True)
        for aware in (False, True):
            policy = GavelLas(GavelLasParameters(placement=aware))
            found.setdefault(aware, []).append(scale.jct(arrivals, policy, nodes=nodes))
    what = f"LAS, multiple, 2 jobs/h, nodes of {NODE_GPUS} GPUs"
    yield Line(f"{what}: placement not a type / a type", "", ratio(found[False], found[True]))


def rounds(scale: Scale) -> Iterator[Line]:
    """Figure 15: round lengths, and the ideal of ``ideal_jct``."""
    found: dict[float, list[float]] = {}
    best = []
    lengths = (360.0, 720.0, 1440.0, 2880.0)
    for seed in scale.seeds:
        arrivals = scale.arriving(4.0, seed)
        for seconds in lengths:
            found.setdefault(seconds, []).append(scale.jct(arrivals, GavelLas(), fixed_rounds(seconds=seconds)))
        simulated = partial(_ideal, scale, arrivals, GavelLas())
        best.append(scale.figures(f"{arrivals.words}, ideal", GavelLas(), fixed_rounds(), simulated)["jct"])
    yield Line("LAS, single, 4 jobs/h: rounds of 360 s / ideal", "about 1", ratio(found[360.0], best))
    for seconds in lengths[1:]:
        yield Line(
            f"LAS, single, 4 jobs/h: rounds of {seconds:.0f} s / 360 s", "more", ratio(found[seconds], found[360.0])
        )


def _ideal(scale: Scale, arrivals: Arrivals, policy: TimeSharePolicy) -> dict[str, float]:
    return {"jct": ideal_jct(arrivals.lasting(scale.window), scale.nodes(), policy, scale.window)}


def ideal_jct(workload: Workload, nodes: tuple[Node, ...], policy: TimeSharePolicy, window: range) -> float:
    """The average JCT in hours if every job had exactly its time share at every instant, recomputed at every change."""
    arrivals = list(workload.submissions)
    wanted = {one.job.uid for one in arrivals[window.start : window.stop]}
    left: dict[str, float] = {}
    live: dict[str, Job] = {}
    times: list[float] = []
    now, arrived = 0.0, 0
    memory: Mapping[str, object] = {}
    while len(times) < len(wanted):
        inputs = allocation_inputs(Snapshot(now, 1, 1.0, nodes, tuple(live.values())))
        shares, memory = policy.time_shares(inputs, memory)
        speed = {
            uids[0]: sum((inputs.speed(live[uids[0]], gpu_type) or 0.0) * part for gpu_type, part in share.items())
            for uids, share in shares.items()
        }
        ends = {uid: now + left[uid] / rate for uid, rate in speed.items() if rate > 0}
        next_arrival = arrivals[arrived].job.submitted if arrived < len(arrivals) else np.inf
        then = min(next_arrival, min(ends.values(), default=np.inf))
        for uid, rate in speed.items():
            left[uid] -= rate * (then - now)
        now = then
        for uid in [uid for uid, end in ends.items() if end <= now]:
            job = live.pop(uid)
            if uid in wanted:
                times.append((now - job.submitted) / HOUR)
        while arrived < len(arrivals) and arrivals[arrived].job.submitted <= now:
            one = arrivals[arrived]
            live[one.job.uid] = one.job.evolve(speed=one.training.known(0.0))
            left[one.job.uid] = one.training.total
            arrived += 1
    return fmean(times)
