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


def stays(record):
    return [(stay.began, stay.ended) for stay in record.intervals]


def run(load, cluster=ONE, policy=None, settings=None, **more):
    outcome = simulate(load, cluster, policy or Fifo(), settings or Settings(), **more)
    return {record.uid: record for record in outcome.jobs}


def test_a_job_ends_when_its_steps_are_done():
    """At GPUs x time, in the middle of a round."""
    done = run(workload(submission("a", 4, submitted=7.0, total=100.0)))
    assert (done["a"].first_started, done["a"].finished, done["a"].jct) == (7.0, 32.0, 25.0)
    assert done["a"].gpu_seconds == 100.0


def test_gpus_of_a_job_that_ends_within_a_round_are_idle_or_reused():
    """With early rounds its successor starts at once, or as soon as rounds may follow each other; else at the next."""
    load = workload(submission("a", 4, total=100.0), submission("b", 4, submitted=1.0, total=100.0))
    assert run(load)["b"].first_started == 25.0
    assert run(load, settings=Settings(min_round_seconds=40.0))["b"].first_started == 40.0
    assert run(load, settings=grid())["b"].first_started == 60.0


def test_at_one_instant_jobs_end_before_others_arrive_and_both_before_the_round():
    """A job that arrives when another ends gets its GPUs in the very round that begins then."""
    load = workload(submission("a", 4, total=240.0), submission("b", 4, submitted=60.0, total=4.0))
    assert run(load, settings=grid())["b"].finished == 61.0


def test_starts_restarts_and_checkpoints_cost_their_time():
    """GPUs are held through them without progress, and the successor waits for the checkpoint."""
    load = workload(submission("a", 4, total=400.0), submission("b", 4, total=40.0))
    costs = grid(60.0, start_seconds=5.0, restart_seconds=7.0, checkpoint_seconds=3.0)
    done = run(load, policy=Script("a", "b", "a"), settings=costs)
    # a trains 55 s of 100 in the first round, and stops for 3 s; then 45 s are left, behind 7 s of restart.
    assert stays(done["b"]) == [(63.0, 78.0)]
    assert stays(done["a"]) == [(0.0, 63.0), (120.0, 172.0)]
    assert done["a"].overhead_seconds == 15.0
    assert (done["a"].preemptions, done["b"].preemptions) == (1, 0)
    own = replace(load.submissions[0], restart_seconds=0.0, checkpoint_seconds=0.0, start_seconds=0.0)
    cheap = run(replace(load, submissions=(own, load.submissions[1])), policy=Script("a", "b", "a"), settings=costs)
    assert stays(cheap["a"]) == [(0.0, 60.0), (120.0, 160.0)]


def test_a_job_may_be_done_within_one_instant():
    """No work, no time."""
    assert run(workload(submission("a", total=0.0)))["a"].jct == 0.0


def test_speed_changes_where_the_source_says_so():
    """Every other regime of 100 steps is twice as fast."""
    load = workload(submission("a", training=Linear(250.0, every=100.0)))
    assert run(load)["a"].finished == 100.0 + 50.0 + 50.0


def test_the_window_ends_the_simulation():
    """It is over when the jobs of the window are done; what runs then is reported without an end."""
    load = workload(*(submission(uid, 4, total=100.0, submitted=i) for i, uid in enumerate("abc")))
    done = run(load, window=range(1, 2))
    assert [done[uid].finished for uid in "abc"] == [25.0, 50.0, None]
    late = run(load, window=range(1))
    assert late["b"].finished is None


def test_a_cluster_where_nothing_can_go_on_ends_the_simulation():
    """Jobs that fit nowhere, and jobs that do not move, are reported as not finished."""
    assert run(workload(submission("a", 8)))["a"].finished is None
    stuck = workload(submission("a", training=Linear(100.0, rate=0.0)))
    assert run(stuck, policy=Script("a"))["a"].finished is None


def test_jobs_that_run_when_it_begins_go_on_where_they_are():
    """With what they have had and done, and without a start."""
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


def test_distance_costs_speed():
    """GPUs of several nodes are slower, and slower still in several racks."""
    load = workload(submission("a", 8, total=800.0))
    costs = Settings(locality=Locality(rack=0.5, cluster=0.25))
    near, far = nodes(2, rack="r0"), (*nodes(1, rack="r0"), Node("n1", "v100", 4, 16, 64, rack="r1"))
    assert run(load, near, settings=costs)["a"].finished == 200.0
    assert run(load, far, settings=costs)["a"].finished == 400.0


def test_uneven_allocations_where_they_are_allowed():
    """Seven GPUs of two nodes with four."""
    load = workload(submission("a", 7, total=700.0))
    assert run(load, nodes(2))["a"].finished is None
    done = run(load, nodes(2), policy=Script("a"), settings=Settings(uneven=True))["a"]
    assert done.finished == 100.0
    assert done.intervals[0].placement.node_gpus == (("n0", 4), ("n1", 3))


def test_failures_come_by_chance_and_seed():
    """With them jobs end later, and differently with another seed."""
    load = workload(submission("a", 4, total=40_000.0))
    outages = Failures(mean_seconds=2000.0, repair_seconds=100.0)
    done = [run(load, settings=Settings(failures=outages, seed=seed, checkpoint_every=300.0))["a"] for seed in (1, 2)]
    assert all(record.failures > 0 and record.finished > 10_000.0 for record in done)
    assert done[0].finished != done[1].finished
    assert done[0].finished >= 10_000.0 + done[0].lost_seconds + 100.0 * done[0].failures


def test_a_long_repair_is_waited_for():
    """However many rounds it takes, during which nothing trains."""
    load = workload(submission("a", 4, total=40_000.0))
    outages = Failures(mean_seconds=20_000.0, repair_seconds=50_000.0)
    settings = grid(10.0, failures=outages, seed=1, checkpoint_every=300.0)
    done = run(load, policy=Script("a"), settings=settings)["a"]
    assert done.failures > 0
    assert done.finished > 50_000.0


def test_no_round_is_later_than_its_turn():
    """A least time between rounds that is longer than a round does not put rounds off."""
    load = workload(submission("a", 4, total=400.0), submission("b", 4, 3.0, total=400.0))
    done = simulate(load, ONE, Fifo(), Settings(round_seconds=5.0, min_round_seconds=10.0))
    assert [each.at for each in done.rounds[:2]] == [0.0, 5.0]


@dataclass
class Stage:
    """A cluster on which a test plays by hand."""

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
        """Let time pass until then."""
        while self.cluster.next_event <= now:
            self.cluster.now = self.cluster.next_event
            self.ended += self.cluster.process_events()
        self.cluster.now = now
        return {job.uid: job for job in self.cluster.job_view()}

    def aim(self, targets, *pairs):
        """New targets."""
        shares = dict(pairs) | {b: a for a, b in pairs}
        self.cluster.set_targets(targets, shares)


def pair(beside=0.5):
    return [submission(uid, 2, training=Linear(200.0, beside=beside)) for uid in "ab"]


def test_two_jobs_on_the_same_gpus_slow_each_other_down():
    """Until one of them is done; both know of each other meanwhile."""
    stage = Stage.of(*pair(), sharing=True)
    stage.aim({"a": WHOLE, "b": WHOLE}, ("a", "b"))
    seen = stage.to(50.0)
    assert (seen["a"].co_runner, seen["b"].co_runner) == ("b", "a")
    assert seen["a"].progress_steps == 100.0
    stage.aim({"b": WHOLE})
    assert stage.to(60.0)["b"].progress_steps == 100.0 + 40.0
    assert stage.to(60.0)["b"].co_runner is None


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_beside_a_job_that_somebody_suspended_the_other_is_alone(order):
    """At its full speed, whichever of them came first; the suspended one has neither progress nor service."""
    status = {"a": Status.SUSPENDED, "b": Status.RUNNING}
    beside = {"a": "b", "b": "a"}
    jobs = [(uid, {"status": status[uid], "placement": HALF, "co_runner": beside[uid]}) for uid in order]
    load = [submission(uid, 2, training=Linear(200.0, beside=0.5), **facts) for uid, facts in jobs]
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
    """Half of it for each while both are there: 50 s, and 25 s for the one that is left."""
    jobs = [submission(uid, 4, training=Linear(total, beside=0.5)) for uid, total in (("a", 100.0), ("b", 200.0))]
    outcome = simulate(workload(*jobs), ONE, Together(), Settings(sharing=True))
    assert [(job.finished, job.gpu_seconds) for job in outcome.jobs] == [(50.0, 100.0), (75.0, 200.0)]
    assert {each.gpus for each in outcome.rounds} == {4}


def test_the_gpus_of_a_pair_are_free_when_both_have_left():
    """One of them leaving frees nothing."""
    stage = Stage.of(*pair(), submission("c", 2), sharing=True)
    stage.aim({"a": WHOLE, "b": WHOLE}, ("a", "b"))
    stage.to(10.0)
    stage.aim({"b": WHOLE, "c": HALF})
    assert stage.to(11.0)["c"].status is Status.HELD
    stage.aim({"c": HALF})
    assert stage.to(12.0)["c"].status is Status.RUNNING


def test_a_third_job_waits_until_one_of_two_has_left():
    """Also through its checkpoint: no GPU ever has three."""
    stage = Stage.of(*pair(), submission("c", 2), sharing=True, checkpoint_seconds=5.0)
    stage.aim({"a": HALF, "b": HALF}, ("a", "b"))
    stage.to(10.0)
    stage.aim({"a": HALF, "c": HALF}, ("a", "c"))
    seen = stage.to(12.0)
    assert (seen["b"].status, seen["c"].status) == (Status.STOPPING, Status.HELD)
    seen = stage.to(16.0)
    assert seen["c"].run_started == 15.0
    assert (seen["a"].co_runner, seen["c"].co_runner) == ("c", "a")


def test_jobs_that_part_on_their_nodes_get_other_gpus_there():
    """The one that comes later in the order is stopped and starts anew, and the reverse when two join."""
    stage = Stage.of(*pair(), sharing=True, restart_seconds=5.0)
    stage.aim({"a": HALF, "b": HALF}, ("a", "b"))
    stage.to(10.0)
    stage.aim({"a": HALF, "b": HALF})
    seen = stage.to(20.0)
    assert (seen["a"].preemptions, seen["b"].preemptions) == (0, 1)
    assert seen["b"].progress_steps == 10.0 + 2 * 5.0
    stage.aim({"a": HALF, "b": HALF}, ("b", "a"))
    assert stage.to(26.0)["b"].co_runner == "a"


def test_a_failure_takes_jobs_back_to_their_checkpoints():
    """Periodic ones, or the step before if every step is saved; a stop that is not through saves nothing."""
    for every, saved, lost in ((10.0, 80.0, 7.0), (None, 94.0, 0.0)):
        stage = Stage.of(submission("a", 2, total=1000.0), checkpoint_every=every, checkpoint_seconds=5.0)
        stage.aim({"a": HALF})
        stage.to(47.0)
        stage.cluster.fail("n0")
        seen = stage.to(50.0)["a"]
        assert (seen.status, seen.progress_steps) == (Status.HELD, saved)
        assert stage.cluster.outcome(stage.cluster.live["a"], None).lost_seconds == pytest.approx(lost)
    stage = Stage.of(submission("a", 2, total=1000.0), checkpoint_every=10.0, checkpoint_seconds=5.0)
    stage.aim({"a": HALF})
    stage.to(47.0)
    stage.aim({})
    stage.to(49.0)
    stage.cluster.fail("n0")
    assert stage.to(60.0)["a"].progress_steps == 80.0
    assert [node.accepts for node in stage.cluster.node_view()] == [False]
    stage.cluster.repair("n0")
    assert [node.accepts for node in stage.cluster.node_view()] == [True]


def test_a_failure_frees_the_other_nodes_of_its_jobs():
    """A job that waits for them starts."""
    wide = Placement(("n0", "n1"), 4, "v100")
    stage = Stage.of(submission("a", 8, total=1e6), submission("b", 2, total=20.0), count=2, checkpoint_seconds=50.0)
    stage.aim({"a": wide})
    stage.to(10.0)
    stage.aim({"b": OTHER})
    stage.to(20.0)
    stage.cluster.fail("n0")
    stage.to(40.0)
    assert [record.uid for record in stage.ended] == ["b"]
    assert stage.ended[0].finished == 30.0


def test_a_cpu_only_job_is_suspended_and_goes_on():
    """Its progress and its start stay; suspended time is no service."""
    spot = Placement(("n0",), 0, None)
    stage = Stage.of(
        submission("a", 0, training=Linear(100.0, per_gpu=False), preempt=Preempt.SUSPEND), start_seconds=4.0
    )
    stage.aim({"a": spot})
    stage.to(3.0)
    stage.aim({})
    assert stage.to(50.0)["a"].status is Status.SUSPENDED
    stage.aim({"a": spot})
    seen = stage.to(61.0)["a"]
    assert (seen.progress_steps, seen.ran_seconds, seen.attained) == (10.0, 14.0, {"": 14.0})
    stage.to(200.0)
    assert stage.ended[0].finished == 151.0
    assert stays(stage.ended[0]) == [(0.0, 3.0), (50.0, 151.0)]
    assert stage.ended[0].overhead_seconds == 4.0


def test_a_stop_is_not_taken_back():
    """A job whose target comes back while it checkpoints starts anew there."""
    stage = Stage.of(submission("a", 2, total=1000.0), checkpoint_seconds=5.0, restart_seconds=1.0)
    stage.aim({"a": HALF})
    stage.to(10.0)
    stage.aim({})
    stage.to(12.0)
    stage.aim({"a": HALF})
    seen = stage.to(20.0)["a"]
    assert seen.run_started == 15.0
    assert seen.progress_steps == 20.0 + 2 * 4.0


class Stuck(Linear):
    """Says that its speed ends where it is."""

    def pace(self, done, placement, co_runner=None):
        del placement, co_runner
        return Pace(1.0, done)


def test_a_source_whose_speed_ends_where_it_begins_is_refused():
    """Time would stand still."""
    with pytest.raises(StuckError, match="job a has done 0"):
        run(workload(submission("a", training=Stuck(10.0))))


def test_engine_and_policy_see_the_same_snapshot_fields_as_in_the_daemon():
    """Service by type, time run, progress, placement and steps, as of the instant of the round."""
    seen = []
    load = workload(submission("a", 2, total=1000.0), submission("b", 2, submitted=30.0, total=10.0))
    simulate(load, ONE, Fifo(), Settings(), watch=lambda snapshot, _: seen.append(snapshot))
    job = seen[1].job["a"]
    assert (seen[1].now, job.status, job.placement) == (30.0, Status.RUNNING, HALF)
    assert (job.attained, job.ran_seconds, job.progress_steps) == ({"v100": 60.0}, 30.0, 60.0)
    assert (job.total_steps, job.remaining_steps, job.run, job.steps_per_second) == (1000.0, 940.0, 1, 2.0)


def test_whoever_watches_sees_what_jobs_have_had_by_then():
    """Also under a policy that asks for none of it, and although nobody brings it up to date for that policy alone."""
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


def test_the_state_of_a_policy_is_carried_from_round_to_round():
    """As the daemon's store does."""

    class Counts(Script):
        def decide(self, snapshot, state):
            decision, _ = super().decide(snapshot, state)
            return decision, PolicyState(1, {"rounds": state.data.get("rounds", 0) + 1})

    states = []
    load = workload(submission("a", 4, total=600.0))
    simulate(load, ONE, Counts("a"), grid(), watch=lambda _, result: states.append(result.state.data["rounds"]))
    assert states == [1, 2, 3]


def test_what_a_failure_costs_a_stopping_job_does_not_grow_with_its_partner_leaving():
    """It did its last step when it was stopped, whoever comes or goes on its GPUs meanwhile."""
    stage = Stage.of(*pair(beside=1.0), sharing=True, checkpoint_every=100.0, checkpoint_seconds=10.0)
    stage.aim({"a": HALF, "b": HALF}, ("a", "b"))
    stage.to(10.0)
    stage.aim({"b": HALF})
    stage.to(15.0)
    stage.aim({})
    stage.to(22.0)
    stage.cluster.fail("n0")
    lost = {uid: stage.cluster.outcome(live, None).lost_seconds for uid, live in stage.cluster.live.items()}
    assert lost == {"a": 0.0, "b": 15.0}
    stage = Stage.of(*pair(beside=1.0), sharing=True, checkpoint_every=100.0, checkpoint_seconds=10.0)
    stage.aim({"a": HALF, "b": HALF}, ("a", "b"))
    stage.to(10.0)
    stage.aim({"b": HALF})
    stage.to(14.0)
    stage.aim({})
    stage.to(19.0)
    stage.cluster.fail("n0")
    lost = {uid: stage.cluster.outcome(live, None).lost_seconds for uid, live in stage.cluster.live.items()}
    assert lost == {"a": 10.0, "b": 14.0}
