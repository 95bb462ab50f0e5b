from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from metasched.core.model import Decision, Grant, Node, Placement, Preempt, Status
from metasched.core.policy import Policy, PolicyState
from metasched.core.reasons import Reason
from metasched.simulator.records import Failures, InitialState, Locality, Settings
from metasched.simulator.simulated_cluster import Cluster, StuckError
from metasched.simulator.simulation import simulate
from metasched.throughput.training import Pace
from policies.baselines.fifo import Fifo
from tests.unit.workloads import Linear, nodes, submission, workload

ONE = nodes(1)
HALF = Placement(("n0",), 2, "v100")
WHOLE = Placement(("n0",), 4, "v100")
OTHER = Placement(("n1",), 2, "v100")


class Script(Policy):
    """Grants these jobs, round by round, what they asked for; the last entry lasts."""

    name = "script"

    def __init__(self, *rounds):
        super().__init__()
        self.rounds = rounds

    def decide(self, snapshot, state):
        turn = self.rounds[min(snapshot.round, len(self.rounds)) - 1]
        live = [snapshot.job[uid] for uid in turn if uid in snapshot.job]
        waits = {job.uid: Reason.text("not in the script") for job in snapshot.jobs if job.uid not in turn}
        return Decision(tuple(Grant(job.uid, job.gpus, Reason.text("in the script")) for job in live), (), waits), state


def grid(length=60.0, **more):
    return Settings(round_seconds=length, early_rounds=False, **more)


def intervals(record):
    return [(interval.began, interval.ended) for interval in record.intervals]


def run(load, cluster=ONE, policy=None, settings=None, **more):
    outcome = simulate(load, cluster, policy or Fifo(), settings or Settings(), **more)
    return {record.uid: record for record in outcome.jobs}


def test_a_job_ends_when_its_steps_are_done():
    """The end is where GPUs times time reach the steps, in the middle of a round."""
    done = run(workload(submission("a", 4, submitted=7.0, total=100.0)))
    assert (done["a"].first_started, done["a"].finished, done["a"].jct) == (7.0, 32.0, 25.0)
    assert done["a"].gpu_seconds == 100.0


def test_gpus_of_a_job_that_ends_within_a_round_are_idle_or_reused():
    """With early rounds its successor starts at once, or after the least time between rounds; else in the next one."""
    load = workload(submission("a", 4, total=100.0), submission("b", 4, submitted=1.0, total=100.0))
    assert run(load)["b"].first_started == 25.0
    assert run(load, settings=Settings(min_round_seconds=40.0))["b"].first_started == 40.0
    assert run(load, settings=grid())["b"].first_started == 60.0


def test_at_one_instant_jobs_end_before_others_arrive_and_both_before_the_round():
    """A job that arrives when another one ends gets its GPUs in the round of that instant."""
    load = workload(submission("a", 4, total=240.0), submission("b", 4, submitted=60.0, total=4.0))
    assert run(load, settings=grid())["b"].finished == 61.0


def test_starts_restarts_and_checkpoints_cost_their_time():
    """Jobs hold their GPUs meanwhile without progress, and the successor waits for the checkpoint."""
    load = workload(submission("a", 4, total=400.0), submission("b", 4, total=40.0))
    costs = grid(60.0, start_seconds=5.0, restart_seconds=7.0, checkpoint_seconds=3.0)
    done = run(load, policy=Script("a", "b", "a"), settings=costs)
    # a trains 55 s of 100 in the first round, and stops for 3 s; then 45 s are left, behind 7 s of restart.
    assert intervals(done["b"]) == [(63.0, 78.0)]
    assert intervals(done["a"]) == [(0.0, 63.0), (120.0, 172.0)]
    assert done["a"].overhead_seconds == 15.0
    assert (done["a"].preemptions, done["b"].preemptions) == (1, 0)
    own = replace(load.submissions[0], restart_seconds=0.0, checkpoint_seconds=0.0, start_seconds=0.0)
    cheap = run(replace(load, submissions=(own, load.submissions[1])), policy=Script("a", "b", "a"), settings=costs)
    assert intervals(cheap["a"]) == [(0.0, 60.0), (120.0, 160.0)]


def test_policies_see_the_cost_of_a_restart():
    """It is the checkpoint's time and the next start's, of the job itself or of the cluster, from the arrival on."""
    seen = set()
    load = workload(submission("a", total=400.0), submission("b", total=400.0, restart_seconds=1.0))
    costs = Settings(start_seconds=50.0, restart_seconds=7.0, checkpoint_seconds=3.0)
    run(load, settings=costs, watch=lambda snapshot, _: seen.update((j.uid, j.restart_seconds) for j in snapshot.jobs))
    assert seen == {("a", 10.0), ("b", 4.0)}


def test_a_job_without_steps_ends_at_once():
    """Its start and its end are the same instant."""
    assert run(workload(submission("a", total=0.0)))["a"].jct == 0.0


def test_the_speed_changes_where_the_pace_ends():
    """Every other regime of 100 steps is twice as fast."""
    load = workload(submission("a", training=Linear(250.0, every=100.0)))
    assert run(load)["a"].finished == 100.0 + 50.0 + 50.0


def test_the_window_ends_the_simulation():
    """It ends when the jobs of the window are complete; running jobs are reported without an end."""
    load = workload(*(submission(uid, 4, total=100.0, submitted=i) for i, uid in enumerate("abc")))
    done = run(load, window=range(1, 2))
    assert [done[uid].finished for uid in "abc"] == [25.0, 50.0, None]
    late = run(load, window=range(1))
    assert late["b"].finished is None


def test_a_simulation_without_progress_ends():
    """Jobs that fit nowhere, and jobs without speed, are reported as not complete."""
    assert run(workload(submission("a", 8)))["a"].finished is None
    stuck = workload(submission("a", training=Linear(100.0, rate=0.0)))
    assert run(stuck, policy=Script("a"))["a"].finished is None


def test_jobs_that_run_at_the_beginning_keep_their_gpus():
    """They keep their service and progress, and pay for no start."""
    load = workload(
        submission("a", 2, total=100.0, status=Status.RUNNING, placement=HALF, progress_steps=60.0, ran_seconds=30.0),
        submission("b", 2, submitted=50.0, total=2.0),
    )
    seen = []
    costs = Settings(start_seconds=9.0, restart_seconds=9.0)
    done = run(load, settings=costs, begin=InitialState(100.0), watch=lambda snapshot, _: seen.append(snapshot))
    assert done["a"].finished == 120.0
    assert done["b"].finished == 110.0
    assert seen[0].job["a"].ran_seconds == 30.0
    assert seen[0].now == 100.0


def test_jobs_on_several_nodes_or_racks_are_slower():
    """Several racks cost more than several nodes."""
    load = workload(submission("a", 8, total=800.0))
    costs = Settings(locality=Locality(rack=0.5, cluster=0.25))
    near, far = nodes(2, rack="r0"), (*nodes(1, rack="r0"), Node("n1", "v100", 4, 16, 64, rack="r1"))
    assert run(load, near, settings=costs)["a"].finished == 200.0
    assert run(load, far, settings=costs)["a"].finished == 400.0


def test_uneven_placements_hold_different_gpus_on_their_nodes():
    """Seven GPUs fit on two nodes of four."""
    load = workload(submission("a", 7, total=700.0))
    assert run(load, nodes(2))["a"].finished is None
    done = run(load, nodes(2), policy=Script("a"), settings=Settings(uneven=True))["a"]
    assert done.finished == 100.0
    assert done.intervals[0].placement.node_gpus == (("n0", 4), ("n1", 3))


def test_failures_are_random_and_fixed_by_the_seed():
    """With failures jobs end later, and differently with another seed."""
    load = workload(submission("a", 4, total=40_000.0))
    outages = Failures(mean_seconds=2000.0, repair_seconds=100.0)
    done = [run(load, settings=Settings(failures=outages, seed=seed, checkpoint_every=300.0))["a"] for seed in (1, 2)]
    assert all(record.failures > 0 and record.finished > 10_000.0 for record in done)
    assert done[0].finished != done[1].finished
    assert done[0].finished >= 10_000.0 + done[0].lost_seconds + 100.0 * done[0].failures


def test_jobs_wait_for_a_long_repair():
    """The simulation does not end during a repair, however many rounds without progress it takes."""
    load = workload(submission("a", 4, total=40_000.0))
    outages = Failures(mean_seconds=20_000.0, repair_seconds=50_000.0)
    settings = grid(10.0, failures=outages, seed=1, checkpoint_every=300.0)
    done = run(load, policy=Script("a"), settings=settings)["a"]
    assert done.failures > 0
    assert done.finished > 50_000.0


def test_a_long_least_time_between_rounds_does_not_delay_regular_rounds():
    """The least time between two rounds is longer than a round here."""
    load = workload(submission("a", 4, total=400.0), submission("b", 4, 3.0, total=400.0))
    done = simulate(load, ONE, Fifo(), Settings(round_seconds=5.0, min_round_seconds=10.0))
    assert [each.at for each in done.rounds[:2]] == [0.0, 5.0]


@dataclass
class Stage:
    """A cluster whose clock and targets a test sets by hand."""

    cluster: Cluster
    ended: list

    @classmethod
    def of(cls, *submissions, count=1, **settings):
        cluster = Cluster(nodes(count), Settings(**settings))
        cluster.now = 0.0
        for each in submissions:
            cluster.arrive(each)
        return cls(cluster, [])

    def to(self, now):
        """Advance the clock, event by event; returns the live jobs by uid."""
        while self.cluster.next_event <= now:
            self.cluster.now = self.cluster.next_event
            self.ended += self.cluster.process_events()
        self.cluster.now = now
        return {job.uid: job for job in self.cluster.job_view()}

    def set_targets(self, targets, *pairs):
        """Set targets; jobs of the pairs are co-runners."""
        co_runners = dict(pairs) | {b: a for a, b in pairs}
        self.cluster.set_targets(targets, co_runners)


def pair(colocated=0.5):
    return [submission(uid, 2, training=Linear(200.0, colocated=colocated)) for uid in "ab"]


def test_two_jobs_on_the_same_gpus_slow_each_other_down():
    """They do so until one of them ends; snapshots name the co-runner of each meanwhile."""
    stage = Stage.of(*pair(), sharing=True)
    stage.set_targets({"a": WHOLE, "b": WHOLE}, ("a", "b"))
    seen = stage.to(50.0)
    assert (seen["a"].co_runner, seen["b"].co_runner) == ("b", "a")
    assert seen["a"].progress_steps == 100.0
    stage.set_targets({"b": WHOLE})
    assert stage.to(60.0)["b"].progress_steps == 100.0 + 40.0
    assert stage.to(60.0)["b"].co_runner is None


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_next_to_a_suspended_job_the_co_runner_has_its_isolated_speed(order):
    """The order of their starts does not matter; the suspended job has neither progress nor service."""
    status = {"a": Status.SUSPENDED, "b": Status.RUNNING}
    co_runners = {"a": "b", "b": "a"}
    jobs = [(uid, {"status": status[uid], "placement": HALF, "co_runner": co_runners[uid]}) for uid in order]
    load = [submission(uid, 2, training=Linear(200.0, colocated=0.5), **facts) for uid, facts in jobs]
    seen = Stage.of(*load, sharing=True).to(10.0)
    assert (seen["a"].status, seen["a"].progress_steps, seen["a"].ran_seconds) == (Status.SUSPENDED, 0.0, 0.0)
    assert (seen["b"].progress_steps, seen["b"].co_runner) == (20.0, "a")


class Together(Fifo):
    """Has the second job share the GPUs of the first."""

    def decide(self, snapshot, state):
        hosts = [None, snapshot.jobs[0].uid]
        grants = (
            Grant(job.uid, 4, Reason.text("both"), co_runner=host)
            for job, host in zip(snapshot.jobs, hosts, strict=False)
        )
        return Decision(tuple(grants)), state


def test_gpu_time_of_a_pair_counts_once():
    """Each job counts for half of it while both run: 50 s, and 25 s more for the second one."""
    jobs = [submission(uid, 4, training=Linear(total, colocated=0.5)) for uid, total in (("a", 100.0), ("b", 200.0))]
    outcome = simulate(workload(*jobs), ONE, Together(), Settings(sharing=True))
    assert [(job.finished, job.gpu_seconds) for job in outcome.jobs] == [(50.0, 100.0), (75.0, 200.0)]
    assert {each.gpus for each in outcome.rounds} == {4}


def test_the_gpus_of_a_pair_are_free_when_both_have_left():
    """The end of one of them frees no GPU."""
    stage = Stage.of(*pair(), submission("c", 2), sharing=True)
    stage.set_targets({"a": WHOLE, "b": WHOLE}, ("a", "b"))
    stage.to(10.0)
    stage.set_targets({"b": WHOLE, "c": HALF})
    assert stage.to(11.0)["c"].status is Status.HELD
    stage.set_targets({"c": HALF})
    assert stage.to(12.0)["c"].status is Status.RUNNING


def test_a_third_job_waits_until_one_of_two_has_left():
    """It waits for the checkpoint, too: no GPU ever has three jobs."""
    stage = Stage.of(*pair(), submission("c", 2), sharing=True, checkpoint_seconds=5.0)
    stage.set_targets({"a": HALF, "b": HALF}, ("a", "b"))
    stage.to(10.0)
    stage.set_targets({"a": HALF, "c": HALF}, ("a", "c"))
    seen = stage.to(12.0)
    assert (seen["b"].status, seen["c"].status) == (Status.STOPPING, Status.HELD)
    seen = stage.to(16.0)
    assert seen["c"].run_started == 15.0
    assert (seen["a"].co_runner, seen["c"].co_runner) == ("c", "a")


def test_a_pair_that_is_split_on_its_nodes_gets_other_gpus_there():
    """The later job in the order is stopped and restarted; so it is when two jobs become a pair."""
    stage = Stage.of(*pair(), sharing=True, restart_seconds=5.0)
    stage.set_targets({"a": HALF, "b": HALF}, ("a", "b"))
    stage.to(10.0)
    stage.set_targets({"a": HALF, "b": HALF})
    seen = stage.to(20.0)
    assert (seen["a"].preemptions, seen["b"].preemptions) == (0, 1)
    assert seen["b"].progress_steps == 10.0 + 2 * 5.0
    stage.set_targets({"a": HALF, "b": HALF}, ("b", "a"))
    assert stage.to(26.0)["b"].co_runner == "a"


def test_a_failure_undoes_the_steps_since_the_checkpoint():
    """The checkpoint is periodic, or of every step; an unfinished stop saves nothing."""
    for every, saved, lost in ((10.0, 80.0, 7.0), (None, 94.0, 0.0)):
        stage = Stage.of(submission("a", 2, total=1000.0), checkpoint_every=every, checkpoint_seconds=5.0)
        stage.set_targets({"a": HALF})
        stage.to(47.0)
        stage.cluster.fail("n0")
        seen = stage.to(50.0)["a"]
        assert (seen.status, seen.progress_steps) == (Status.HELD, saved)
        assert stage.cluster.outcome(stage.cluster.live["a"], None).lost_seconds == pytest.approx(lost)
    stage = Stage.of(submission("a", 2, total=1000.0), checkpoint_every=10.0, checkpoint_seconds=5.0)
    stage.set_targets({"a": HALF})
    stage.to(47.0)
    stage.set_targets({})
    stage.to(49.0)
    stage.cluster.fail("n0")
    assert stage.to(60.0)["a"].progress_steps == 80.0
    assert [node.accepts for node in stage.cluster.node_view()] == [False]
    stage.cluster.repair("n0")
    assert [node.accepts for node in stage.cluster.node_view()] == [True]


def test_a_failure_frees_the_other_nodes_of_its_jobs():
    """A job that waits for these nodes starts."""
    wide = Placement(("n0", "n1"), 4, "v100")
    stage = Stage.of(submission("a", 8, total=1e6), submission("b", 2, total=20.0), count=2, checkpoint_seconds=50.0)
    stage.set_targets({"a": wide})
    stage.to(10.0)
    stage.set_targets({"b": OTHER})
    stage.to(20.0)
    stage.cluster.fail("n0")
    stage.to(40.0)
    assert [record.uid for record in stage.ended] == ["b"]
    assert stage.ended[0].finished == 30.0


def test_a_job_without_gpus_is_suspended_and_resumed():
    """It keeps its progress and the rest of its start; suspended time is no service."""
    spot = Placement(("n0",), 0, None)
    stage = Stage.of(
        submission("a", 0, training=Linear(100.0, per_gpu=False), preempt=Preempt.SUSPEND), start_seconds=4.0
    )
    stage.set_targets({"a": spot})
    stage.to(3.0)
    stage.set_targets({})
    assert stage.to(50.0)["a"].status is Status.SUSPENDED
    stage.set_targets({"a": spot})
    seen = stage.to(61.0)["a"]
    assert (seen.progress_steps, seen.ran_seconds, seen.attained) == (10.0, 14.0, {"": 14.0})
    stage.to(200.0)
    assert stage.ended[0].finished == 151.0
    assert intervals(stage.ended[0]) == [(0.0, 3.0), (50.0, 151.0)]
    assert stage.ended[0].overhead_seconds == 4.0


def test_a_stop_is_not_revoked():
    """A job whose target returns while it checkpoints is restarted there."""
    stage = Stage.of(submission("a", 2, total=1000.0), checkpoint_seconds=5.0, restart_seconds=1.0)
    stage.set_targets({"a": HALF})
    stage.to(10.0)
    stage.set_targets({})
    stage.to(12.0)
    stage.set_targets({"a": HALF})
    seen = stage.to(20.0)["a"]
    assert seen.run_started == 15.0
    assert seen.progress_steps == 20.0 + 2 * 4.0


class Stuck(Linear):
    """Says that its speed ends where it is."""

    def pace(self, done, placement, co_runner=None):
        del placement, co_runner
        return Pace(1.0, done)


def test_a_pace_that_ends_at_the_steps_done_is_refused():
    """The simulation would never end."""
    with pytest.raises(StuckError, match="job a has done 0"):
        run(workload(submission("a", training=Stuck(10.0))))


def test_snapshots_have_the_fields_that_the_daemon_fills():
    """Service by type, running time, progress, placement and steps are those of the instant of the round."""
    seen = []
    load = workload(submission("a", 2, total=1000.0), submission("b", 2, submitted=30.0, total=10.0))
    simulate(load, ONE, Fifo(), Settings(), watch=lambda snapshot, _: seen.append(snapshot))
    job = seen[1].job["a"]
    assert (seen[1].now, job.status, job.placement) == (30.0, Status.RUNNING, HALF)
    assert (job.attained, job.ran_seconds, job.progress_steps) == ({"v100": 60.0}, 30.0, 60.0)
    assert (job.total_steps, job.remaining_steps, job.run, job.steps_per_second) == (1000.0, 940.0, 1, 2.0)


def test_a_watching_function_sees_service_up_to_the_round():
    """So it does under a steady policy, whose own snapshots are not brought up to date."""
    seen = {}
    load = workload(submission("a", 2, total=100.0), submission("b", 2, submitted=20.0, total=100.0))
    settings = grid(length=10.0)
    watched = simulate(load, ONE, Fifo(), settings, watch=lambda at, _: seen.setdefault(at.now, at.job))
    assert Fifo.steady
    assert [(now, dict(jobs["a"].attained), jobs["a"].progress_steps) for now, jobs in seen.items() if "a" in jobs] == [
        (0.0, {}, 0.0),
        (20.0, {"v100": 40.0}, 40.0),
    ]
    assert watched.jobs == simulate(load, ONE, Fifo(), settings).jobs


def test_each_round_gets_the_policys_state_of_the_round_before():
    """The daemon's store does the same."""

    class Counts(Script):
        def decide(self, snapshot, state):
            decision, _ = super().decide(snapshot, state)
            return decision, PolicyState(1, {"rounds": state.data.get("rounds", 0) + 1})

    states = []
    load = workload(submission("a", 4, total=600.0))
    simulate(load, ONE, Counts("a"), grid(), watch=lambda _, result: states.append(result.state.data["rounds"]))
    assert states == [1, 2, 3]


def test_the_loss_of_a_stopping_job_does_not_depend_on_its_co_runner():
    """Its last step was that before the stop, also if its co-runner ends meanwhile."""
    stage = Stage.of(*pair(colocated=1.0), sharing=True, checkpoint_every=100.0, checkpoint_seconds=10.0)
    stage.set_targets({"a": HALF, "b": HALF}, ("a", "b"))
    stage.to(10.0)
    stage.set_targets({"b": HALF})
    stage.to(15.0)
    stage.set_targets({})
    stage.to(22.0)
    stage.cluster.fail("n0")
    lost = {uid: stage.cluster.outcome(live, None).lost_seconds for uid, live in stage.cluster.live.items()}
    assert lost == {"a": 0.0, "b": 15.0}
    stage = Stage.of(*pair(colocated=1.0), sharing=True, checkpoint_every=100.0, checkpoint_seconds=10.0)
    stage.set_targets({"a": HALF, "b": HALF}, ("a", "b"))
    stage.to(10.0)
    stage.set_targets({"b": HALF})
    stage.to(14.0)
    stage.set_targets({})
    stage.to(19.0)
    stage.cluster.fail("n0")
    lost = {uid: stage.cluster.outcome(live, None).lost_seconds for uid, live in stage.cluster.live.items()}
    assert lost == {"a": 10.0, "b": 14.0}
