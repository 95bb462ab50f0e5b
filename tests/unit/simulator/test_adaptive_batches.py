"""Jobs whose batch size changes while they run, in simulations."""

import pytest

from contrib.reproductions.typed_training import AdaptiveTypedTraining
from metasched.core.batching import BatchControl, BatchPlan
from metasched.core.model import Decision, Grant, Node, Placement
from metasched.core.policy import Policy, PolicyState
from metasched.core.reasons import Reason
from metasched.simulator.agent import Agent
from metasched.simulator.generate.pollux import synthetic_profiles
from metasched.simulator.records import Settings, Workload
from metasched.simulator.simulation import simulate
from metasched.simulator.traces.pollux import submission
from metasched.throughput.adaptive_profile import AdaptiveProfileTraining
from metasched.throughput.iteration_time import IterationParameters
from metasched.throughput.training import AdaptiveTraining
from metasched.throughput.typed_fits import TypedFits

PROFILE = synthetic_profiles()["cifar10"]
TRAINING = AdaptiveProfileTraining(PROFILE, PROFILE.first_batch)
NODES = tuple(Node(f"n{i}", "t4", 4, cpus=0, memory=0) for i in range(2))
ONE, FOUR, SPREAD = Placement(("n0",), 1, "t4"), Placement(("n0",), 4, "t4"), Placement(("n0", "n1"), 2, "t4")
LARGE = BatchPlan(128)


class Planned(Policy):
    """Grants each job its GPUs, with a batch plan from the second round in which it is known on."""

    name = "planned"
    fits_iterations = True
    plans = (None, LARGE)
    seen = ()

    def decide(self, snapshot, state):
        number = state.data.get("number", 0)
        plan = self.plans[min(number, len(self.plans) - 1)]
        grants = [Grant(job.uid, job.gpus, Reason.text("test"), batch=plan) for job in snapshot.jobs]
        type(self).seen = (*self.seen, *snapshot.jobs)
        return Decision(tuple(grants)), PolicyState(1, {"number": number + 1})


def run(policy, gpus=4):
    policy.seen = ()
    job = submission("1", "c", 0.0, PROFILE, gpus=gpus, batch=PROFILE.first_batch, adaptive=True)
    outcome = simulate(Workload("test", (job,)), NODES, policy(), Settings(round_seconds=60.0))
    return outcome.jobs[0]


def test_a_plan_is_taken_up_without_a_restart_and_shortens_the_job():
    """The job has one run; with the large batch it ends earlier, as its goodput says."""

    class Fixed(Planned):
        plans = (None,)

    tuned, fixed = run(Planned), run(Fixed)
    assert len(tuned.intervals) == len(fixed.intervals) == 1
    assert tuned.jct < fixed.jct
    faster = TRAINING.tuned_pace(0.0, FOUR, LARGE).steps_per_second / TRAINING.pace(0.0, FOUR).steps_per_second
    assert faster > 1.2


def test_policies_see_what_the_trainer_reports():
    """Nothing before the first run; then limits, plan, noise and regimes, and a model fitted to what was run."""
    run(Planned)
    first, second, third, *_ = Planned.seen
    assert first.adaptive_batch
    assert first.batching is None
    assert second.batching.control is BatchControl.SCHEDULER
    assert second.batching.global_batch == PROFILE.first_batch
    assert third.requested_batch == third.batching.plan == LARGE
    assert [regime.batch for regime in third.batching.regimes] == [PROFILE.first_batch, LARGE.global_batch(4)]
    assert third.noise == TRAINING.noise(third.progress_steps, third.batching.global_batch)
    assert third.most_gpus == 4
    assert set(third.iteration_parameters) == {"t4"}


def test_the_agent_fits_what_it_has_run_and_nothing_else():
    """Configurations that were run are predicted closely; several nodes are taken to be hardly slower than one."""
    agent = Agent(TRAINING, fits=True)
    for place in (ONE, FOUR):
        for per_gpu in (PROFILE.least_local, LARGE.per_gpu):
            agent.plan = BatchPlan(per_gpu)
            agent.measure(0.0, place)
    job = agent.report(submission("1", "c", 0.0, PROFILE, gpus=1, batch=PROFILE.first_batch).job, 0.0)
    found = job.iteration_parameters["t4"]
    true = TRAINING.iteration_seconds(FOUR, LARGE)
    assert found.iteration_seconds(4, LARGE.per_gpu, 1, multi_node=False) == pytest.approx(true, rel=0.05)
    assert found.alpha_node == pytest.approx(1.1 * found.sync_seconds(4, multi_node=False))
    assert found.beta_node == 0.0
    assert found.iteration_seconds(4, LARGE.per_gpu, 1, multi_node=True) < TRAINING.iteration_seconds(SPREAD, LARGE)


def waiting():
    return submission("1", "c", 0.0, PROFILE, gpus=1, batch=PROFILE.first_batch).job


def test_the_agent_retunes_the_batch_to_what_it_knows():
    """It keeps its plan until it has fitted; then it takes the plan that it believes to be the fastest."""
    agent = Agent(TRAINING, fits=True)
    agent.retune(0.0, FOUR)
    assert agent.plan is None
    agent.measure(0.0, FOUR)
    before = agent.pace(0.0, FOUR, None).steps_per_second
    late = TRAINING.total * 0.9  # the noise is large at the end
    agent.retune(late, FOUR)
    assert agent.plan.global_batch(4) > PROFILE.first_batch
    assert agent.pace(late, FOUR, None).steps_per_second > 1.2 * before


def test_an_agent_with_earlier_knowledge_has_it_before_its_first_run():
    """Without fits it stays the same; the noise is not known before the training runs."""
    known = IterationParameters(0.1, 0.001)
    agent = Agent(TRAINING, fits=False, parameters={"t4": known})
    before = agent.report(waiting(), 0.0)
    assert (before.noise, before.iteration_parameters, before.batching) == (None, {"t4": known}, TRAINING.batching)
    agent.measure(0.0, FOUR)
    after = agent.report(waiting(), 0.0)
    assert after.iteration_parameters == {"t4": known}
    assert after.noise is not None
    assert Agent(TRAINING, fits=True).report(waiting(), 0.0).batching is None


def test_a_job_knows_an_unseen_type_from_other_jobs():
    """One job has run on both types, so that another one that has run on the slow one knows the fast one."""
    typed = AdaptiveTypedTraining(TRAINING, {"t4": 1.0, "slow": 0.5})
    fits = TypedFits()
    first, second = (Agent(typed, fits=True, typed_fits=fits) for _ in range(2))
    slow = Placement(("n1",), 1, "slow")
    second.measure(0.0, slow)
    assert set(second.report(waiting(), 0.0).iteration_parameters) == {"slow"}
    for place in (ONE, slow):
        first.measure(0.0, place)
    first.report(waiting(), 0.0)
    second.measure(0.0, Placement(("n1",), 2, "slow"))
    found = second.report(waiting(), 0.0).iteration_parameters
    assert found["slow"].pass_seconds(64) == pytest.approx(2 * found["t4"].pass_seconds(64), rel=0.02)


def test_timed_passes_tell_a_pass_from_the_synchronisation():
    """One iteration on several GPUs alone leaves open which part of it is the pass."""
    agent = Agent(TRAINING, fits=True, times_passes=True)
    agent.plan = LARGE
    agent.measure(0.0, FOUR)
    found = agent.report(waiting(), 0.0).iteration_parameters["t4"]
    one, two = (TRAINING.iteration_seconds(FOUR, BatchPlan(LARGE.per_gpu, passes)) for passes in (1, 2))
    assert found.pass_seconds(LARGE.per_gpu) == pytest.approx(two - one, rel=0.02)


def test_the_noise_at_a_batch_beyond_the_measured_ones_is_that_of_the_nearest():
    """An extrapolated variance could be negative."""
    for batch, nearest in ((1, PROFILE.first_batch), (10 * PROFILE.most_batch, PROFILE.most_batch)):
        assert TRAINING.noise(0.0, batch) == TRAINING.noise(0.0, nearest)


def test_goodput_of_a_plan_counts_accumulation_and_gain():
    """More micro-batches take longer, and a larger batch is worth less than its size."""
    once, twice = BatchPlan(64, 1), BatchPlan(64, 2)
    times = [TRAINING.iteration_seconds(FOUR, plan) for plan in (once, twice)]
    assert times[0] < times[1] < 2 * times[0]
    for plan, seconds in zip((once, twice), times, strict=True):
        gain = TRAINING.noise(0.0, plan.global_batch(4)).gain(PROFILE.first_batch, plan.global_batch(4))
        pace = TRAINING.tuned_pace(0.0, FOUR, plan)
        assert pace.steps_per_second == pytest.approx(gain / seconds, rel=0.2)
        assert pace.until == PROFILE.ends[0]
    assert TRAINING.tuned_pace(0.0, Placement(("n0",), 4, "a100"), LARGE).steps_per_second == 0.0


def test_the_training_satisfies_its_protocol():
    """The simulated cluster asks for it."""
    assert isinstance(TRAINING, AdaptiveTraining)
