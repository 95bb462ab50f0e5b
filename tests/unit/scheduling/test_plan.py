from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core import reason_words
from metasched.core.model import (
    End,
    Hold,
    HoldJob,
    Node,
    Placement,
    Preempt,
    Requeue,
    Resume,
    Snapshot,
    Start,
    Status,
    Stop,
    Suspend,
)
from metasched.core.reasons import Reason
from metasched.scheduling.engine import run_round
from metasched.scheduling.gpu_shards import GpuShards
from metasched.scheduling.gpu_sharing import GpuSharing
from metasched.scheduling.plan import ACTION_ORDER, Timeouts, plan
from tests import builders
from tests.unit.strategies import FixedPolicy, grants_for, held, load, overfull, snapshots

TIMEOUTS = Timeouts(grace_seconds=30.0, start_limit_seconds=60.0)
HERE = Placement(("n1",), 1, "v100")
LOST = Reason.text("it ranks last")
THERE = Placement(("n2",), 1, "v100")


def job(uid="a", status=Status.HELD, gpus=1, **more):
    more.setdefault("hold", Hold.ADMIN if status is Status.HELD else Hold.NONE)
    return builders.job(uid, gpus, slurm_job_id=f"1{uid}", status=status, **more)


def cpu_job(uid, status, **more):
    return job(uid, status, 0, cpus_per_unit=16, preempt=Preempt.SUSPEND, **more)


def missing(jobs, targets, now=1000.0):
    nodes = tuple(Node(name, "v100", 4, 16, 64) for name in ("n1", "n2"))
    return plan(Snapshot(now, 1, 60.0, nodes, tuple(jobs)), targets, TIMEOUTS)


def kinds(actions):
    return [(type(action), action.uid) for action in actions]


def test_a_held_job_with_a_target_is_started_there():
    """Under any hold, a job that may start and has a target is started."""
    for hold in (Hold.ADMIN, Hold.USER):
        (action,) = missing([job(hold=hold)], {"a": HERE})
        assert isinstance(action, Start)
        assert action.placement == HERE


def test_a_blocked_job_is_never_started():
    """Its target is ignored; if it is queued already, it is held, with the reason of its block."""
    assert missing([job(blocked=Reason.text("waits for job 7"))], {"a": HERE}) == ()
    queued = job(status=Status.QUEUED, released=HERE, released_at=999.0, blocked=Reason.text("waits for job 7"))
    assert missing([queued], {"a": HERE}) == (HoldJob("a", Reason.text("waits for job 7")),)


def test_only_a_hold_that_its_owner_can_release_is_replaced():
    """A waiting job gets an admin hold once."""
    assert kinds(missing([job(hold=Hold.USER)], {})) == [(HoldJob, "a")]
    assert missing([job(hold=Hold.ADMIN)], {}) == ()


@pytest.mark.parametrize(
    ("released", "released_at", "targets", "acts"),
    [
        (HERE, 990.0, {"a": HERE}, False),
        (HERE, 990.0, {}, True),
        (HERE, 990.0, {"a": THERE}, True),
        (None, None, {"a": HERE}, True),
        (HERE, 900.0, {"a": HERE}, True),
    ],
)
def test_a_queued_job_is_held_unless_it_waits_for_its_target_and_in_time(released, released_at, targets, acts):
    """A job released for other nodes, by another user, without a target or too long ago is held again."""
    actions = missing([job(status=Status.QUEUED, released=released, released_at=released_at)], targets)
    assert kinds(actions) == ([(HoldJob, "a")] if acts else [])


def test_a_queued_job_is_not_late_while_its_nodes_are_being_vacated():
    """The time to start counts only when the jobs that hold its nodes have ended."""
    late = job(status=Status.QUEUED, released=HERE, released_at=900.0)
    victim = job("v", Status.RUNNING, placement=HERE, stop_requested=995.0)
    assert missing([late, victim], {"a": HERE}) == ()


def test_a_running_job_on_its_target_needs_no_action():
    """For each way of preemption."""
    for preempt in Preempt:
        assert missing([job(status=Status.RUNNING, placement=HERE, preempt=preempt)], {"a": HERE}) == ()


def test_a_running_job_without_a_target_is_stopped_once_with_a_deadline():
    """The job is requeued once its grace time is over."""
    run = job(status=Status.RUNNING, placement=HERE)
    (action,) = missing([run], {})
    assert isinstance(action, Stop)
    assert action.deadline == 1030.0
    assert missing([run.evolve(stop_requested=975.0)], {}) == ()
    assert kinds(missing([run.evolve(stop_requested=965.0)], {})) == [(Requeue, "a")]


def test_a_stop_is_not_withdrawn():
    """A job whose target is its placement again is waited for, and requeued if it does not answer the stop."""
    run = job(status=Status.RUNNING, placement=HERE, stop_requested=975.0)
    assert missing([run], {"a": HERE}) == ()
    assert kinds(missing([run.evolve(stop_requested=965.0)], {"a": HERE})) == [(Requeue, "a")]


def ended(one, **options):
    """The actions on a job that is to end for good, although it has a target."""
    nodes = (Node("n1", "v100", 4, 16, 64),)
    return plan(Snapshot(1000.0, 1, 60.0, nodes, (one,)), {"a": HERE}, TIMEOUTS, ends={"a": LOST}, **options)


@pytest.mark.parametrize("preempt", list(Preempt))
def test_a_running_job_that_is_to_end_finishes_within_its_grace_time(preempt):
    """However it may be preempted; it is asked once, or again where the request may be lost; late, it is cancelled."""
    run = job(status=Status.RUNNING, placement=HERE, preempt=preempt)
    assert ended(run) == (End("a", LOST, 1030.0),)
    asked = run.evolve(stop_requested=975.0)
    assert ended(asked) == ()
    assert ended(asked, unsent={"a"}) == (End("a", LOST, 1005.0),)
    assert ended(run.evolve(stop_requested=965.0)) == (End("a", LOST, None),)


@pytest.mark.parametrize(
    ("status", "facts", "action"),
    [
        (Status.HELD, {}, End("a", LOST, None)),
        (Status.HELD, {"hold": Hold.USER, "blocked": Reason.text("waits for job 7")}, End("a", LOST, None)),
        (Status.QUEUED, {"released": HERE, "released_at": 999.0}, End("a", LOST, None)),
        (Status.SUSPENDED, {"placement": HERE, "suspended_by_us": True}, Resume("a", LOST)),
        (Status.SUSPENDED, {"placement": HERE, "suspended_by_us": False}, None),
        (Status.STOPPING, {"placement": HERE}, None),
    ],
)
def test_a_job_that_is_to_end_is_cancelled_where_no_trainer_can_answer(status, facts, action):
    """A trainer that waits for its time slice is resumed first; an admin's suspension is left alone."""
    assert ended(job(status=status, **facts)) == (() if action is None else (action,))


def test_a_pinned_job_is_never_stopped():
    """Neither preempt=no nor a GPU job with preempt=suspend is touched while it runs."""
    for preempt in (Preempt.NO, Preempt.SUSPEND):
        assert missing([job(status=Status.RUNNING, placement=HERE, preempt=preempt)], {}) == ()


def test_a_cpu_only_job_is_suspended_on_its_node():
    """Without a target it is suspended; it is never moved."""
    place = Placement(("n1",), 0, None)
    run = cpu_job("a", Status.RUNNING, placement=place)
    assert kinds(missing([run], {})) == [(Suspend, "a")]
    assert missing([run], {"a": Placement(("n2",), 0, None)}) == ()


def test_a_suspended_job_is_resumed_when_its_cpus_are_free():
    """It waits until jobs that got its CPUs have ended, and for jobs resumed before it."""
    place = Placement(("n1",), 0, None)
    paused = cpu_job("a", Status.SUSPENDED, placement=place, suspended_by_us=True)
    other = cpu_job("b", Status.RUNNING, placement=place)
    assert kinds(missing([paused, other], {"a": place})) == [(Suspend, "b")]
    assert kinds(missing([paused, other.evolve(status=Status.STOPPING)], {"a": place})) == []
    assert kinds(missing([paused], {"a": place})) == [(Resume, "a")]
    both = [paused, paused.evolve(uid="b")]
    assert kinds(missing(both, {"b": place, "a": place})) == [(Resume, "b")]


def test_an_admins_suspension_is_left_unchanged():
    """Only the admin who suspended the job resumes it."""
    place = Placement(("n1",), 0, None)
    assert missing([cpu_job("a", Status.SUSPENDED, placement=place)], {"a": place}) == ()


def test_the_successor_is_queued_before_its_victim_is_stopped():
    """Starts come before stops, and the victim's reason names the successor."""
    actions = missing([job("v", Status.RUNNING, placement=HERE), job("s")], {"s": HERE})
    assert kinds(actions) == [(Start, "s"), (Stop, "v")]
    assert reason_words.words(actions[1].reason) == "preempted for 1s"


def test_more_important_jobs_come_first():
    """Within one kind of action, the order is that of the targets."""
    actions = missing([job("a"), job("b"), job("c")], {"c": HERE, "a": THERE, "b": HERE})
    assert [action.uid for action in actions] == ["c", "a", "b"]


class IdealSlurm:
    """Executes actions at once, starts a queued job when its nodes are free, and ends stopped runs one poll later.

    It never lets running jobs exceed a node, and fails on an action that the job's state does not allow.
    """

    def __init__(self, snapshot, deaf):
        self.nodes, self.jobs, self.now, self.deaf = snapshot.nodes, dict(snapshot.job), snapshot.now, deaf

    def snapshot(self):
        return Snapshot(self.now, 1, 60.0, self.nodes, tuple(self.jobs.values()))

    def do(self, action):
        job = self.jobs[action.uid]
        allowed = {
            HoldJob: (Status.HELD, Status.QUEUED),
            Start: (Status.HELD,),
            Suspend: (Status.RUNNING,),
            Stop: (Status.RUNNING,),
            Requeue: (Status.RUNNING,),
            Resume: (Status.SUSPENDED,),
        }
        assert job.status in allowed[type(action)]
        match action:
            case HoldJob():
                job = job.evolve(status=Status.HELD, hold=Hold.ADMIN, released=None, released_at=None)
            case Start(placement=place):
                job = job.evolve(status=Status.QUEUED, hold=Hold.NONE, released=place, released_at=self.now)
            case Suspend():
                job = job.evolve(status=Status.SUSPENDED, suspended_by_us=True)
            case Stop():
                job = job.evolve(stop_requested=self.now)
            case Requeue():
                job = job.evolve(status=Status.STOPPING)
            case Resume():
                job = job.evolve(status=Status.RUNNING, suspended_by_us=False)
        self.jobs[job.uid] = job

    def tick(self):
        """Ten seconds: runs that were ending end, queued jobs start where enough is free."""
        self.now += 10.0
        for job in list(self.jobs.values()):
            if job.status is Status.STOPPING:
                gone = {"placement": None, "last_placement": job.placement, "stop_requested": None}
                self.jobs[job.uid] = job.evolve(status=Status.HELD, hold=Hold.ADMIN, **gone)
            elif job.status is Status.RUNNING and job.stop_requested is not None and job.uid not in self.deaf:
                self.jobs[job.uid] = job.evolve(status=Status.STOPPING)
        for job in list(self.jobs.values()):
            if job.status is Status.QUEUED and job.released is not None:
                started = job.evolve(status=Status.RUNNING, placement=job.released, released=None)
                if not overfull(self.nodes, [*self.holdings(), held(started)]):
                    self.jobs[job.uid] = started
        assert overfull(self.nodes, self.holdings()) == []

    def holdings(self):
        return [holding for job in self.jobs.values() if (holding := held(job)) is not None]


def follow(slurm, targets):
    """Fifteen polls, after which nothing is left to do."""
    for _ in range(15):
        actions = plan(slurm.snapshot(), targets, TIMEOUTS)
        order = [ACTION_ORDER.index(type(action)) for action in actions]
        assert order == sorted(order)
        assert len({action.uid for action in actions}) == len(actions)
        for action in actions:
            slurm.do(action)
        slurm.tick()
    assert plan(slurm.snapshot(), targets, TIMEOUTS) == ()


def test_a_cpu_job_is_suspended_and_resumed_by_its_targets():
    """Which the few random states of the next test may not have."""
    place = Placement(("n1",), 0, None)
    running = cpu_job("a", Status.RUNNING, placement=place)
    slurm = IdealSlurm(Snapshot(0.0, 1, 60.0, (Node("n1", None, 0, 16, 64),), (running,)), set())
    for targets, status in (({}, Status.SUSPENDED), ({"a": place}, Status.RUNNING)):
        follow(slurm, targets)
        assert slurm.jobs["a"].status is status


@given(st.data())
def test_the_plan_leads_to_exactly_the_targets(data):
    """From any state, repeated plans end within fifteen polls with the targets running and no other job."""
    shot = data.draw(snapshots(blocked=True))
    policy = FixedPolicy(lambda view: data.draw(grants_for(view)))
    targets = run_round(shot, policy, None).targets
    deaf = data.draw(st.sets(st.sampled_from([job.uid for job in shot.jobs]))) if shot.jobs else set()
    slurm = IdealSlurm(shot, deaf)
    follow(slurm, targets)
    paused = {job.uid for job in shot.jobs if job.status is Status.SUSPENDED and not job.suspended_by_us}
    runs = {job.uid: job.placement for job in slurm.jobs.values() if job.status is Status.RUNNING}
    assert runs == {uid: place for uid, place in targets.items() if uid not in paused}


@given(st.data())
def test_a_plan_does_not_depend_on_the_order_of_jobs(data):
    """Shuffled jobs of the snapshot give the same plan."""
    shot = data.draw(snapshots(blocked=True))
    targets = run_round(shot, FixedPolicy(lambda view: data.draw(grants_for(view))), None).targets
    shuffled = replace(shot, jobs=tuple(data.draw(st.permutations(shot.jobs))))
    first, second = plan(shot, targets, TIMEOUTS), plan(shuffled, targets, TIMEOUTS)
    assert [(type(a), a.uid) for a in first if not isinstance(a, Resume)] == [
        (type(a), a.uid) for a in second if not isinstance(a, Resume)
    ]
    assert first == second


def test_loads_are_counted_per_node():
    """The tests' own accounting finds a node that is one GPU over."""
    nodes = (Node("n1", "v100", 2, 8, 8),)
    two, one = job("a", gpus=2), job("b")
    full = load(two, Placement(("n1",), 2, "v100"))
    assert overfull(nodes, [full]) == []
    assert overfull(nodes, [full, load(one, HERE)]) == ["n1"]


# -- two jobs on one GPU


def sharing_of(free, held, partners=(), time_slicing=(), **more):
    """One node, n1; the jobs that hold halves of its GPUs, and the pairs that should share."""
    both = {one: other for pair in partners for one, other in (pair, pair[::-1])}
    shards = GpuShards(2, {"n1": free}, {uid: {"n1": gpu} for uid, gpu in held.items()}, **more)
    return GpuSharing(both, frozenset(time_slicing), shards)


def on_half(uid, status=Status.RUNNING, **more):
    more.setdefault("placement", HERE if status is not Status.HELD else None)
    return job(uid, status, half_gpus=True, **more)


def sharing_plan(jobs, sharing, targets=None, now=1000.0):
    nodes = (Node("n1", "v100", 4, 16, 64),)
    targets = dict.fromkeys((job.uid for job in jobs), HERE) if targets is None else targets
    return plan(Snapshot(now, 1, 60.0, nodes, tuple(jobs)), targets, TIMEOUTS, sharing)


def test_a_pair_starts_in_one_poll_on_a_half_each():
    """Both are released in one poll, where no GPU is half free."""
    actions = sharing_plan([job("a"), job("b")], sharing_of((2, 2), {}, [("a", "b")]))
    assert [(type(action), action.uid, action.half_gpus) for action in actions] == [
        (Start, "a", True),
        (Start, "b", True),
    ]


@pytest.mark.parametrize(
    "partner",
    [
        job("b", Status.RUNNING, placement=THERE),
        job("b", Status.STOPPING, placement=THERE),
        job("b", Status.RUNNING, placement=HERE, half_gpus=True, stop_requested=990.0),
    ],
)
def test_a_job_waits_for_a_partner_that_runs_elsewhere(partner):
    """Alone it could be assigned another GPU than the partner later."""
    actions = sharing_plan([job("a"), partner], sharing_of((2, 2), {}, [("a", "b")]))
    assert Start not in [type(action) for action in actions]


def test_a_partner_that_changes_restarts_no_job():
    """A job on half a GPU keeps it: the new co-runner starts there, or none does."""
    holder = on_half("a")
    assert sharing_plan([holder], sharing_of((1, 2), {"a": 0})) == ()
    (action,) = sharing_plan([holder, job("c")], sharing_of((1, 2), {"a": 0}, [("a", "c")]))
    assert (type(action), action.uid, action.half_gpus) == (Start, "c", True)


def test_a_job_whose_partner_cannot_join_it_restarts():
    """Slurm would assign the partner a GPU of a lower index: both start again, together."""
    (action,) = sharing_plan([on_half("a"), job("c")], sharing_of((2, 1), {"a": 1}, [("a", "c")]))
    assert (type(action), action.uid) == (Stop, "a")


def test_a_single_job_whose_half_gpu_a_pair_would_get_restarts():
    """Slurm would assign the free half to one job of the pair."""
    actions = sharing_plan([on_half("x"), job("a"), job("b")], sharing_of((1, 2), {"x": 0}, [("a", "b")]))
    assert kinds(actions) == [(Stop, "x")]
    behind = sharing_plan([on_half("x"), job("a"), job("b")], sharing_of((2, 1), {"x": 1}, [("a", "b")]))
    assert kinds(behind) == [(Start, "a"), (Start, "b")]


def test_a_dissolved_pair_is_separated():
    """The less important job restarts, unless it alone has another partner."""
    pair = {"a": 0, "b": 0}
    assert kinds(sharing_plan([on_half("a"), on_half("b")], sharing_of((0, 2), pair))) == [(Stop, "b")]
    actions = sharing_plan([on_half("a"), on_half("b"), job("c")], sharing_of((0, 2), pair, [("b", "c")]))
    assert kinds(actions) == [(Stop, "a")]


def test_a_job_on_a_whole_gpu_restarts_before_it_shares_it():
    """Slurm cannot take half of a GPU from a running job."""
    whole = job("a", Status.RUNNING, placement=HERE)
    assert kinds(sharing_plan([whole, job("b")], sharing_of((0, 2), {}, [("a", "b")]))) == [(Stop, "a")]


def test_pairs_of_one_node_start_one_after_the_other():
    """Otherwise Slurm could assign halves of one GPU to jobs of two pairs."""
    jobs = [job(uid) for uid in "abcd"]
    pairs = [("a", "b"), ("c", "d")]
    assert kinds(sharing_plan(jobs, sharing_of((2, 2), {}, pairs))) == [(Start, "a"), (Start, "b")]
    queued = [on_half(uid, Status.QUEUED, released=HERE, released_at=999.0, placement=None) for uid in "ab"]
    assert sharing_plan([*queued, *jobs[2:]], sharing_of((2, 2), {}, pairs)) == ()


def test_a_job_restarts_when_slurm_assigned_its_gpu_to_another_job():
    """It would share the GPU with a job of another user."""
    assert kinds(sharing_plan([on_half("a")], sharing_of((0, 2), {"a": 0}, overlapping=frozenset("a")))) == [
        (Stop, "a")
    ]


def test_a_job_on_whole_gpus_does_not_start_where_slurm_counts_a_half_free_gpu_as_free():
    """The job on the other half restarts first; where Slurm counts correctly, none does."""
    jobs = [on_half("x"), job("a", whole_gpus=True)]
    assert kinds(sharing_plan(jobs, sharing_of((1, 2), {"x": 0}, assigns_half_free=True))) == [(Stop, "x")]
    assert kinds(sharing_plan(jobs, sharing_of((2, 1), {"x": 1}, assigns_half_free=True))) == [(Start, "a")]
    assert kinds(sharing_plan(jobs, sharing_of((1, 2), {"x": 0}))) == [(Start, "a")]


@pytest.mark.parametrize("uid", ["a", "b"])
def test_no_job_restarts_for_a_pair_of_which_a_job_is_blocked(uid):
    """The pair cannot start, whichever of its jobs is blocked; its other job starts alone."""
    blocked = {uid: Reason.text("waits for job 7")}
    jobs = [on_half("x"), *(job(one, blocked=blocked.get(one)) for one in "ab")]
    (action,) = sharing_plan(jobs, sharing_of((1, 2), {"x": 0}, [("a", "b")]))
    assert (type(action), action.uid, action.half_gpus) == (Start, "b" if uid == "a" else "a", False)


def test_no_job_restarts_for_a_blocked_job_on_whole_gpus():
    """The blocked job could not start on the GPU."""
    jobs = [on_half("x"), job("a", whole_gpus=True, blocked=Reason.text("waits for job 7"))]
    assert sharing_plan(jobs, sharing_of((1, 2), {"x": 0}, assigns_half_free=True)) == ()


def suspended(uid, since, **more):
    return on_half(uid, Status.SUSPENDED, suspended_by_us=True, suspended_at=since, **more)


TIME_SLICED = {"held": {"a": 0, "b": 0}, "partners": [("a", "b")], "time_slicing": "ab"}


def test_of_a_time_sliced_pair_exactly_one_job_runs():
    """The job with more service is suspended first; after each time slice the two are swapped."""
    had_more = on_half("a", attained={"v100": 9.0})
    assert kinds(sharing_plan([had_more, on_half("b")], sharing_of((0,), **TIME_SLICED))) == [(Suspend, "a")]
    assert sharing_plan([suspended("a", 950.0), on_half("b")], sharing_of((0,), **TIME_SLICED)) == ()
    over = sharing_plan([suspended("a", 940.0), on_half("b")], sharing_of((0,), **TIME_SLICED))
    assert kinds(over) == [(Suspend, "b"), (Resume, "a")]
    assert kinds(sharing_plan([suspended("a", 940.0), suspended("b", 950.0)], sharing_of((0,), **TIME_SLICED))) == [
        (Resume, "a")
    ]


@pytest.mark.parametrize("target", [HERE, THERE, None])
@pytest.mark.parametrize("partner", [None, "running", "elsewhere"])
def test_a_suspended_job_is_resumed_when_time_slicing_ends(target, partner):
    """Whatever its target is, it is resumed first: a suspended trainer cannot answer a stop."""
    jobs = [suspended("a", 999.0)]
    if partner is not None:
        jobs.append(on_half("b", placement=HERE if partner == "running" else THERE))
    targets = {uid: place for uid, place in (("a", target), ("b", HERE)) if place is not None}
    wanted = sharing_of((0,), {"a": 0, "b": 0} if partner == "running" else {"a": 0})
    assert (Resume, "a") in kinds(sharing_plan(jobs, wanted, targets))
