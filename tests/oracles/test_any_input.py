"""No legal input makes a policy raise, or return a decision that the contract refuses.

An example is a cluster with its jobs in all states, and what happens to them in the rounds after the first one. Every
installed policy decides all of these rounds, each with its defaults or with other parameters, its state carried over as
the daemon does. ``ANY_INPUT_EXAMPLES`` is the number of examples: 200 unless it is set (``make any-input``: 10,000
others).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from metasched.core.apps import LossPoint, TunerSettings
from metasched.core.batching import AdaptationRule, BatchControl, Batching, BatchPlan, BatchRegime, GradientNoise
from metasched.core.model import Hold, Job, Node, Preempt, Quota, Status
from metasched.core.policy import PolicyState, installed_policies
from metasched.core.reason_words import words
from metasched.core.reasons import Reason
from metasched.scheduling.engine import precompute, run_round
from tests.unit.strategies import GPU_TYPES, NOW, load, overfull, snapshots
from tests.unit.strategies import jobs as held_jobs

EXAMPLES = int(os.environ.get("ANY_INPUT_EXAMPLES", "200"))
PARTS = 4  # of the policies, which several processes decide at once
SEARCHES = "ANY_INPUT_EXAMPLES" in os.environ  # other clusters in every run
ROUNDS = 3
TODAY = 1.8e9
SOME_SPEEDS = (None, 0.0, 1e-8, 0.3, 1.0, 1.0, 7.5, 1e6)
"""Steps per second: not known, known not to run, and from the least to the most that a report may say."""

TIME_SHARES = (
    {"recompute_rounds": 1},
    {"recompute_seconds": 100.0, "carry": False},
    {"heed_speeds": False, "fill_pairs": True},
    {"types_in_turn": ("v100", "a100"), "shuffle_types": True},
    {"quantum_restarts": 1e6, "recompute_rounds": 2},
)
GAVEL = (*TIME_SHARES, {"aware": False}, {"placement": True}, {"unknown_seconds": 1e-3})
ELASTIC = ({"elastic": False},)
BY_APP = {"by_app": True}
PARAMETERS: Mapping[str, tuple[dict, ...]] = {
    "allox": (*TIME_SHARES, {"alpha": 0.2}, {"as_published": True}),
    "ares": (
        {"alpha": 0.01, "leftovers": "faster"},
        {"leftovers": "none", "explore": False, "turn_seconds": 0.0},
    ),
    "fifo": ({"backfill": True}, *ELASTIC),
    "gandiva": (*TIME_SHARES, {"least_gain": 0.0, "time_slices": True}),
    "gandiva_apps": (),
    "gandiva_fair": (*TIME_SHARES, {"by_user": False}, {"as_published": True}),
    "gavel_cost": (
        *GAVEL,
        {"slos": False},
        {"together": True},
        {"margin": 0.99, "prices": {"v100": 1e-3, "a100": 1e3}},
        {"together": True, "prices": {"v100": 1e-3, "a100": 1e3}},
    ),
    "gavel_fcfs": GAVEL,
    "gavel_fifo": (*TIME_SHARES, {"aware": False}, {"aware": False, "as_published": True}),
    "gavel_ftf": GAVEL,
    "gavel_hierarchical": (
        *GAVEL,
        {"entities": {"x": {"weight": 1e-6}, "y": {"weight": 1e6, "inside": "fifo"}}},
        {"others": {"inside": "fifo"}},
    ),
    "gavel_las": (*GAVEL, {"fill": True}, {"fill": True, "aware": False}, {"fill": True, "placement": True}),
    "gavel_makespan": (*GAVEL, {"tolerance": 0.5}),
    "gavel_sjf": GAVEL,
    "gavel_throughput": GAVEL,
    "isolated": TIME_SHARES,
    "las": (
        {"queue_thresholds_gpu_seconds": (1.0, 1e9), "promote_knob": None},
        {"promote_knob": 1e-3},
        *ELASTIC,
        BY_APP,
    ),
    "max_sum_throughput": TIME_SHARES,
    "optimus": (BY_APP,),
    "pollux": (
        {"p": 1.0, "improvements": 0, "background": False},
        {"p": -10.0, "avoid_interference": False, "restart_seconds": 0.0},
        {"p": 0.0, "background": False},
        {"p": "-inf"},
        {"search": "population", "generations": 3, "population": 4},
        {"search": "population", "generations": 1, "population": 2, "background": False, "p": -1000.0},
    ),
    "shockwave": (
        {"k": 0.0, "regularisation": 0.0, "background": False},
        {"predictor": "greedy", "window_rounds": 2, "restart_seconds": 0.0},
        {"predictor": "bayes", "elastic": True, "by_account": True, "background": False},
        {"samples": 3, "elastic": True},
    ),
    "slaq": ({"history_weight": 1.0}, {"history_weight": 1e-3}),
    "slurm": ({"backfill": False}, {"default_limit_seconds": 1.0, "favor_small": True, "half_life_seconds": 1e-3}),
    "srsf": (*ELASTIC, BY_APP),
    "srtf": (*ELASTIC, BY_APP),
    "themis": (
        {"fairness": 0.01, "background": False, "most_demand": 1e-9},
        {"rows_in_round": 0, "payment": "gpus"},
        {"fairness": 0.99, "lease_seconds": 1e-3, "restart_seconds": 0.0, "rows_in_round": 0},
        {"lease_seconds": 1e6, "most_partial_choices": 1},
    ),
}
"""By policy, parameters other than the defaults."""


@dataclass(frozen=True)
class AnySpeed:
    """Speeds without any regularity: by GPU type, times a factor for each further GPU and on several nodes."""

    known: tuple[tuple[str, float | None], ...]
    growth: float
    several_nodes: float | None
    colocated: float | None

    def steps_per_second(self, gpu_type, spread):
        """Steps per second on one node or several."""
        one = dict(self.known).get(gpu_type)
        part = 1.0 if len(spread) == 1 else self.several_nodes
        return None if one is None or part is None else min(one * self.growth ** min(sum(spread) - 1, 9) * part, 1e6)

    def steps_per_second_with(self, other, gpu_type, spread):
        """A fraction of the isolated speed, whatever the co-runner."""
        isolated = self.steps_per_second(gpu_type, spread)
        return None if isolated is None or self.colocated is None else isolated * self.colocated


SPEEDS = st.one_of(
    st.none(),
    st.builds(
        AnySpeed,
        st.tuples(*(st.tuples(st.just(name), st.sampled_from(SOME_SPEEDS)) for name in GPU_TYPES)),
        st.sampled_from((1.0, 0.5, 2.0, 1.9)),
        st.sampled_from((1.0, None, 0.0, 1e-3)),
        st.sampled_from((0.9, None, 0.0, 0.5, 1.0)),
    ),
)
BATCHES = st.one_of(
    st.none(),
    st.builds(
        Batching,
        first_batch=st.sampled_from((1, 64, 10**9)),
        control=st.sampled_from(BatchControl),
        plan=st.sampled_from((None, BatchPlan(1), BatchPlan(64, 3), BatchPlan(10**9, 10**9))),
        global_batch=st.sampled_from((None, 1, 64, 10**9)),
        max_batch=st.sampled_from((None, 1, 64, 4096, 10**9)),
        min_per_gpu=st.sampled_from((1, 32, 10**9)),
        max_per_gpu=st.sampled_from((None, 1, 64, 10**9)),
        regimes=st.sampled_from(((), (BatchRegime(64, 0.0), BatchRegime(10**9, 5.0)), (BatchRegime(0, 1e300),))),
        adapts=st.sampled_from((None, *AdaptationRule)),
        most_regimes=st.sampled_from((None, 1, 3, 10**9)),
        schedule=st.sampled_from(((), (BatchRegime(64, 0.0), BatchRegime(1, 1e9)))),
    ),
)
NOISE = st.one_of(
    st.none(), st.builds(GradientNoise, st.sampled_from((0.0, 1e-30, 1.0, 1e30)), st.sampled_from((0.0, 1e-30, 1e30)))
)
SECONDS = st.sampled_from((0.0, 1e-12, 0.01, 1e8))
ITERATIONS = st.dictionaries(  # a fit's first parameter is above 0
    st.sampled_from((*GPU_TYPES, "gone")),
    st.tuples(st.sampled_from((1e-9, 0.01, 1e8)), *[SECONDS] * 5, st.sampled_from((1.0, 2.5, 10.0))),
    max_size=2,
)
LOSSES = (
    (),
    tuple(LossPoint(4.0**power, 2.0**-power) for power in range(8)),
    tuple(LossPoint(float(steps), 1.0) for steps in range(3)),
    (LossPoint(0.0, -1e300), LossPoint(1e-9, 1e300), LossPoint(5.0, 0.0), LossPoint(1e15, -3.0)),
    (LossPoint(1.0, float("nan")), LossPoint(2.0, float("inf")), LossPoint(3.0, float("-inf")), LossPoint(4.0, 1.0)),
)
KNOWLEDGE = {
    "losses": st.sampled_from(LOSSES),
    "speed": SPEEDS,
    "batching": BATCHES,
    "noise": NOISE,
    "iteration_parameters": ITERATIONS,
    "restart_seconds": st.sampled_from((None, 0.0, 30.0, 1e9)),
    "adaptive_batch": st.booleans(),
    "most_gpus": st.sampled_from((0, 1, 64)),
    "learns_speed": st.booleans(),
    "steps_per_second": st.sampled_from((None, 1e-8, 1.0, 1e6)),
    "expected_service": st.sampled_from((None, 0.0, 1.0, 1e12)),
    "total_steps": st.sampled_from((None, 1, 1_000, 10**6, 10**12, 10**15)),
    "progress_steps": st.sampled_from((None, 0, 1, 999, 10**12)),
}
REQUEST = {
    "app": st.sampled_from((None, None, "array:1", "app:ann/x")),
    "tuner": st.sampled_from((None, TunerSettings("halving", {"steps": 1000.0}), TunerSettings("curve"))),
    "weight": st.one_of(st.just(1.0), st.sampled_from((0.5, 1e-3, 1e-6, 1e-9)), st.floats(1e-9, 1.0)),
    "account": st.sampled_from((None, "x", "y", "z")),
    "fair_share": st.sampled_from((None, 1.0, 0.25, 1e-9)),
    "user": st.sampled_from(("ann", "bob")),
    "submitted": st.sampled_from((0.0, NOW - 60.0, NOW, NOW + 3600.0)),
    "profiled": st.booleans(),
    "whole_gpus": st.sampled_from((False, False, True)),
    "slo_seconds": st.sampled_from((None, None, 1e-6, 3600.0, 1e9)),
    "time_limit_seconds": st.sampled_from((None, 60.0, 3600.0, float("inf"))),
    "reservation": st.sampled_from(("", "", "", "r", ",r")),
    "open_seconds": st.sampled_from((0.0, 0.0, 3600.0, float("inf"))),
    "only_nodes": st.sampled_from((frozenset(), frozenset({"n0"}), frozenset({"n1", "n2"}), frozenset({"gone"}))),
    "excluded_nodes": st.sampled_from((frozenset(), frozenset({"n0"}), frozenset({"n0", "n1", "n2", "n3", "n4"}))),
}
HISTORY = {
    "run": st.sampled_from((0, 1, 1000)),
    "preemptions": st.sampled_from((0, 3)),
    "attained": st.dictionaries(
        st.sampled_from((*GPU_TYPES, "", "gone")), st.sampled_from((0.0, 5e3, 1e12)), max_size=2
    ),
    "ran_seconds": st.sampled_from((0.0, 100.0, 1e9)),
}


@st.composite
def cases(draw):
    """A first snapshot, and for each later round, what happens before it."""
    first = draw(snapshots(blocked=True, free=True))
    jobs = [draw(any_job(job)) for job in first.jobs]
    nodes = tuple(draw(any_node(node)) for node in first.nodes)
    first = replace(first, nodes=nodes, jobs=ordered(jobs), quotas=draw(quotas(jobs)))
    if draw(st.booleans()):
        first = replace(first, now=NOW + TODAY, jobs=tuple(job.evolve(**later_instants(job)) for job in first.jobs))
    return first, [draw(events(first, number)) for number in range(1, ROUNDS)]


def later_instants(job):
    """The job's instants, later by ``TODAY``."""
    names = ("submitted", "released_at", "run_started", "stop_requested", "suspended_at", "last_ended")
    return {name: at + TODAY for name in names if (at := getattr(job, name)) is not None}


@st.composite
def any_job(draw, job):
    """The job with any request, history and knowledge beyond those of ``strategies.jobs``."""
    fields = {**REQUEST, **HISTORY, **KNOWLEDGE}
    names = draw(st.lists(st.sampled_from(sorted(fields)), unique=True))
    job = job.evolve(**{name: draw(fields[name]) for name in names})
    if job.gpus and draw(st.sampled_from((False,) * 7 + (True,))):
        job = job.evolve(max_gpus=1_000_000, nodes=None)
    if job.gpus and draw(st.booleans()):
        sizes = st.integers(job.min_gpus, min(job.max_gpus, job.min_gpus + 8))
        job = job.evolve(sizes=tuple(sorted(draw(st.sets(sizes, min_size=1, max_size=4)))))
    return job


@st.composite
def any_node(draw, node):
    """The node, perhaps reserved, soon to be reserved, or with GPUs that are all down."""
    kind = draw(st.sampled_from(("plain",) * 5 + ("reserved", "ahead", "rack")))
    more = {"reserved": {"reservation": "r"}, "ahead": {"open_seconds": 1800.0}, "rack": {"rack": "r1"}}
    return replace(node, **more.get(kind, {}))


@st.composite
def quotas(draw, jobs):
    """Up to two quotas of some of the jobs."""
    found = []
    for number in range(draw(st.sampled_from((0, 0, 1, 2)))):
        members = frozenset(job.uid for job in jobs if draw(st.booleans()))
        of_jobs = draw(st.booleans())
        gpu_type = None if of_jobs else draw(st.sampled_from((None, *GPU_TYPES)))
        found.append(Quota(f"q{number}", members, draw(st.integers(-2, 6)), of_jobs, gpu_type))
    return tuple(found)


@dataclass(frozen=True)
class Events:
    """What happens before a round.

    ``slow``: preempted jobs have not ended yet. ``fields``: new values of fields, by uid. ``solved``: a computation in
    the background has ended. ``reloaded``: the policy has other parameters from now on.
    """

    passed: float
    slow: bool
    ended: frozenset[str]
    arrived: tuple[Job, ...]
    fields: Mapping[str, Mapping[str, object]]
    nodes: tuple[Node, ...]
    quotas: tuple[Quota, ...]
    uneven: bool
    sharing: bool
    solved: bool
    reloaded: bool


@st.composite
def events(draw, first, number):
    """Events of any kind before a later round."""
    uids = [job.uid for job in first.jobs]
    arrived = [
        draw(any_job(draw(held_jobs(number * 100 + i)))).evolve(run=0, attained={}, ran_seconds=0.0)
        for i in range(draw(st.sampled_from((0, 0, 1, 2))))
    ]
    changed = {}
    for uid in uids:
        if draw(st.sampled_from((False, True))):
            names = draw(st.lists(st.sampled_from(sorted(KNOWLEDGE)), unique=True, max_size=3))
            changed[uid] = {name: draw(KNOWLEDGE[name]) for name in names}
            if draw(st.sampled_from((False, False, True))):
                changed[uid]["blocked"] = draw(st.sampled_from((None, Reason.text("waits for job 7"))))
    nodes = tuple(
        replace(node, accepts=draw(st.sampled_from((True, True, False)))) if draw(st.booleans()) else node
        for node in first.nodes
        if draw(st.sampled_from((True,) * 7 + (False,)))
    )
    return Events(
        passed=draw(st.sampled_from((60.0, 1.0, 0.0, 1e6))),
        slow=draw(st.booleans()),
        ended=frozenset(uid for uid in uids if draw(st.sampled_from((False, False, False, True)))),
        arrived=tuple(arrived),
        fields=changed,
        nodes=nodes,
        quotas=draw(quotas(first.jobs)),
        uneven=draw(st.sampled_from((first.uneven, first.uneven, not first.uneven))),
        sharing=draw(st.sampled_from((first.sharing, first.sharing, not first.sharing))),
        solved=draw(st.booleans()),
        reloaded=draw(st.booleans()),
    )


def ordered(jobs):
    return tuple(sorted(jobs, key=lambda job: (job.submitted, job.uid)))


def after(before, result, happened, solved):
    """The next round's snapshot: the last round's targets have come true, as far as they have by then."""
    now = before.now + happened.passed
    names = {node.name for node in happened.nodes}
    jobs = []
    for job in before.jobs:
        if job.uid not in happened.ended and job.status is not Status.FINISHED:
            placed = moved(job, result, happened, now)
            if placed.placement is not None and not names.issuperset(placed.placement.nodes):
                placed = without(placed)  # Slurm requeues the jobs of a lost node
            if placed.released is not None and not names.issuperset(placed.released.nodes):
                placed = placed.evolve(released=None)
            jobs.append(placed.evolve(**happened.fields.get(job.uid, {})))
    held = {job.uid: job for job in jobs if job.active}
    jobs = [job if held.get(job.co_runner) is not None else job.evolve(co_runner=None) for job in jobs]
    return replace(
        before,
        now=now,
        round=before.round + 1,
        nodes=happened.nodes,
        jobs=ordered([*jobs, *(job.evolve(submitted=now) for job in happened.arrived)]),
        uneven=happened.uneven,
        sharing=happened.sharing,
        quotas=happened.quotas,
        precomputed=solved,
    )


def without(job):
    """The job, held and without GPUs."""
    return job.evolve(
        status=Status.HELD,
        hold=Hold.ADMIN,
        placement=None,
        last_placement=job.placement,
        last_ended=NOW,
        co_runner=None,
        stop_requested=None,
        run_started=None,
        suspended_by_us=False,
        released=None,
    )


def moved(job, result, happened, now):
    """The job after a round."""
    place = result.targets.get(job.uid)
    if job.placement is not None and place == job.placement:
        served = {
            **job.attained,
            place.gpu_type or "": job.attained.get(place.gpu_type or "", 0.0) + place.gpus * happened.passed,
        }
        status = Status.RUNNING if job.status is not Status.SUSPENDED or job.suspended_by_us else job.status
        return job.evolve(
            status=status, attained=served, suspended_by_us=False, co_runner=result.co_runners.get(job.uid)
        )
    if happened.slow and job.active:
        return job.evolve(status=Status.STOPPING if job.preempt is Preempt.CHECKPOINT else job.status)
    if place is None:
        return without(job)
    if happened.slow:
        return without(job).evolve(status=Status.QUEUED, hold=Hold.NONE, released=place, released_at=now)
    return without(job).evolve(
        status=Status.RUNNING,
        hold=Hold.NONE,
        placement=place,
        run=job.run + 1,
        run_started=now,
        co_runner=result.co_runners.get(job.uid),
    )


POLICIES = installed_policies()


def test_every_installed_policy_has_an_entry():
    """A new policy is decided with other parameters, too."""
    assert set(POLICIES.names()) == set(PARAMETERS)


def stored(data):
    """JSON-compatible data after it has been stored and read."""
    return json.loads(json.dumps(data, allow_nan=False))


def configured(name, number):
    """A policy with the parameters of this number: its defaults, then those of ``PARAMETERS``, in turn."""
    policy, choices = POLICIES.get(name), ({}, *PARAMETERS[name])
    return policy(policy.Parameters.model_validate(choices[number % len(choices)]))


def decide_rounds(name, variant, first, later):
    """Decide all rounds under one policy, and check each result."""
    policy = configured(name, variant)
    view, state = first, None
    if policy.solves_in_background:
        view = replace(view, precomputed={})
    for number in range(ROUNDS):
        result = run_round(view, policy, state)
        state = PolicyState(result.state.version, stored(dict(result.state.data)))
        if result.decision.degraded is not None:
            event(f"{name}: {result.decision.degraded.facts}")  # pytest --hypothesis-show-statistics counts these
        live = {job.uid for job in view.jobs if job.status is not Status.FINISHED}
        assert result.reasons.keys() == live
        assert all(words(reason) for reason in result.reasons.values())
        assert not overfull(view.nodes, holdings(view, result))
        assert not list(beyond_sizes(view, result))
        if number < len(later):
            happened, solved = later[number], None
            if policy.solves_in_background:
                solved = stored(precompute(view, policy, state) or {}) if happened.solved else {}
            view = after(view, result, happened, solved)
            if happened.reloaded:
                variant += 1
                policy = configured(name, variant)
                view = replace(view, precomputed={} if policy.solves_in_background else None)


def beyond_sizes(view, result):
    """Jobs whose targets are new and have other numbers of GPUs than they can run on."""
    for uid, place in result.targets.items():
        job = view.job[uid]
        if job.sizes and place.gpus not in job.sizes and job.placement != place:
            yield uid, place.gpus, job.sizes


def holdings(view, result):
    """What the targets take on each node; GPUs of co-runners count once."""
    seen = set()
    for uid, place in result.targets.items():
        job = view.job[uid]
        once = result.co_runners.get(uid) in seen
        seen.add(uid)
        suspended = job.status is Status.SUSPENDED and job.suspended_by_us and job.placement == place
        open_nodes = {node.name for node in view.nodes}
        if open_nodes.issuperset(place.nodes):
            yield load(job, place, (not once, not suspended, 1))


@pytest.mark.timeout(max(600, 3 * EXAMPLES))
@pytest.mark.parametrize("part", range(PARTS))
@settings(max_examples=EXAMPLES, deadline=None, derandomize=not SEARCHES)
@given(data=st.data())
def test_no_legal_input_makes_a_policy_raise(part, data):
    """Whatever tags, reports, limits and nodes say, every policy has a decision that the contract accepts."""
    first, later = data.draw(cases())
    variant = data.draw(st.integers(0, 11))
    for name in POLICIES.names()[part::PARTS]:
        try:
            decide_rounds(name, variant, first, later)
        except Exception as error:
            error.add_note(f"policy {name}, first with {configured(name, variant).parameters}")
            raise
