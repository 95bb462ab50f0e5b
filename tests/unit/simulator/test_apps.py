"""Apps in simulations: tuners compare hidden learning curves, whatever the policy and whatever fails."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.core.apps import LossPoint, TunerSettings
from metasched.core.model import Node
from metasched.core.policy import installed_policies
from metasched.simulator.generate.learning_curves import learning_curve
from metasched.simulator.metrics import measure
from metasched.simulator.records import Failures, Settings, Submission, Workload, trace_job
from metasched.simulator.simulation import simulate
from metasched.throughput.linear_scaling import LinearTraining
from policies.baselines.fifo import Fifo
from policies.baselines.las import Las, LasParameters
from policies.baselines.slaq import Slaq
from policies.baselines.srsf import Srsf
from policies.baselines.srtf import ShortestParameters

NODES = tuple(Node(f"n{i}", "k80", 2, 0, 0) for i in range(3))
STEPS = 1024.0
ROUNDS = Settings(round_seconds=300.0, min_round_seconds=0.0)
SEEDS = st.integers(0, 999).map(random.Random)
POLICIES = (Fifo(), Las(LasParameters(by_app=True)), Srsf(ShortestParameters(by_app=True)), Slaq())


def app(number, trials, rng, *, total=None, submitted=0.0):
    """The trials of one app, with drawn curves; ``total`` has the steps after which a trial ends by itself."""
    tuner = TunerSettings("halving", {"steps": STEPS})
    for task in range(trials):
        job = trace_job(f"{number}_{task:02}", "net", submitted, 1, max_gpus=4)
        job = job.evolve(app=f"array:{number}", tuner=tuner)
        training = LinearTraining((total or {}).get(task, STEPS), rng.uniform(0.5, 1.5))
        yield Submission(job, training, losses=learning_curve(rng, STEPS))


def two_trials():
    return list(app(1, 2, random.Random(1)))  # noqa: S311  no secret


def phase_ends(trials):
    return [STEPS / 2 ** (trials.bit_length() - 1 - phase) for phase in range(trials.bit_length() - 1)]


def best_by_halving(submissions):
    """The trial that halving leaves, by the true curves."""
    live = {one.job.uid: {round(steps, 6): loss for steps, loss in one.losses} for one in submissions}
    for end in phase_ends(len(submissions)):
        ranked = sorted(live, key=lambda uid: (live[uid][end], uid))
        live = {uid: live[uid] for uid in ranked[: len(ranked) // 2]}
    return next(iter(live))


def outcome(submissions, policy, given=ROUNDS, nodes=NODES):
    found = simulate(Workload("test", tuple(submissions)), nodes, policy, given)
    return {job.uid: job for job in found.jobs}


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3), st.sampled_from(POLICIES), st.booleans(), SEEDS)
def test_half_of_the_trials_continue_at_each_phase(halvings, policy, fails, rng):
    """Nodes that fail change nothing: each loser ends at its phase's end, and the winner trains to its end."""
    trials = list(app(1, 2**halvings, rng))
    given_settings = replace(ROUNDS, checkpoint_every=60.0, failures=Failures(2000.0, 100.0) if fails else None)
    found = outcome(trials, policy, given_settings)
    ends = Counter(job.steps for job in found.values())
    assert ends == Counter({end: 2 ** (halvings - 1 - phase) for phase, end in enumerate(phase_ends(2**halvings))}) | {
        STEPS: 1
    }
    assert [uid for uid, job in found.items() if job.finished is not None] == [best_by_halving(trials)]
    assert sum(job.ended is not None for job in found.values()) == 2**halvings - 1


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(POLICIES), st.sets(st.integers(0, 7), max_size=3), SEEDS)
def test_trials_that_are_gone_take_the_places_of_losers(policy, gone, rng):
    """Of eight trials some end by themselves within the first phase; as many continue as without them."""
    trials = list(app(1, 8, rng, total=dict.fromkeys(gone, 100.0)))
    found = outcome(trials, policy)
    reached = [sum(job.steps >= end for job in found.values()) for end in (*phase_ends(8), STEPS)]
    assert reached == [8 - len(gone), min(4, 8 - len(gone)), 2, 1]
    assert sum(job.finished is not None for job in found.values()) == 1 + len(gone)


@pytest.fixture(scope="module")
def searches():
    """Two apps of four trials, and the trials that halving leaves."""
    rng = random.Random(5)  # noqa: S311  no secret
    apps = [list(app(number, 4, rng, submitted=100.0 * number)) for number in (1, 2)]
    return [one for trials in apps for one in trials], [best_by_halving(trials) for trials in apps]


@pytest.mark.parametrize("name", installed_policies().names())
def test_the_same_trials_win_under_every_policy(searches, name):
    """Policies decide when the trials train, and never which of them win."""
    submissions, winners = searches
    found = outcome(submissions, installed_policies().get(name)(), nodes=NODES[:2])
    assert sorted(uid for uid, job in found.items() if job.finished is not None) == winners


def test_losses_are_hidden_until_they_are_reported():
    """A snapshot has the losses up to the job's progress, of a job that waits for GPUs as well."""
    curve = tuple(LossPoint(steps, 1.0 / steps) for steps in (10.0, 20.0, 40.0))
    one = Submission(trace_job("1", "net", 0.0, 1), LinearTraining(100.0, 1.0), losses=curve)
    other = Submission(trace_job("2", "net", 0.0, 2), LinearTraining(100.0, 1.0))
    seen = []
    simulate(
        Workload("test", (one, other)),
        (Node("n", "k80", 2, 0, 0),),
        Las(LasParameters(queue_thresholds_gpu_seconds=(15.0,), promote_knob=None)),
        replace(ROUNDS, round_seconds=5.0),
        watch=lambda snapshot, _: seen.extend(job for job in snapshot.jobs if job.uid == "1"),
    )
    assert {len(job.losses) for job in seen} == {0, 1, 2, 3}
    for job in seen:
        assert job.losses == tuple(point for point in curve if point.progress_steps <= job.progress_steps)


def test_a_round_begins_when_a_phase_ends():
    """Trials do not train past their phase until the next regular round."""
    trials = two_trials()
    rounds = []
    simulate(Workload("test", tuple(trials)), NODES, Fifo(), ROUNDS, watch=lambda shot, _: rounds.append(shot.now))
    slower, faster = (STEPS / 2 * one.training.seconds_per_step for one in trials)
    assert {round(at, 6) for at in (slower, faster)} <= {round(at, 6) for at in rounds}


def test_an_apps_fair_time_counts_the_work_that_was_done():
    """A loser that was ended half-way has done half of its training."""
    trials = two_trials()
    workload = Workload("test", tuple(trials))
    found = simulate(workload, NODES, Fifo(), ROUNDS)
    work = sum(job.steps * one.training.seconds_per_step for job, one in zip(found.jobs, trials, strict=True))
    assert sorted(job.steps for job in found.jobs) == [STEPS / 2, STEPS]
    rho = measure(found, workload).fairness["themis"].rho
    assert rho == {"1": pytest.approx(max(job.left for job in found.jobs) / (work / 2))}
