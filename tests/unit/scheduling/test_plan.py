from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core import reason_words
from metasched.core.model import (
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
from metasched.scheduling.plan import ORDER, Timeouts, plan
from tests import builders
from tests.unit.strategies import FixedPolicy, grants_for, held, load, overfull, snapshots

LIMITS = Timeouts(grace_seconds=30.0, start_seconds=60.0)
HERE = Placement(("n1",), 1, "v100")
THERE = Placement(("n2",), 1, "v100")


def job(uid="a", status=Status.HELD, gpus=1, **more):
    more.setdefault("hold", Hold.ADMIN if status is Status.HELD else Hold.NONE)
    return builders.job(uid, gpus, slurm_job_id=f"1{uid}", status=status, **more)


def cpu_job(uid, status, **more):
    return job(uid, status, 0, cpus_per_unit=16, preempt=Preempt.SUSPEND, **more)


def missing(jobs, targets, now=1000.0):
    nodes = tuple(Node(name, "v100", 4, 16, 64) for name in ("n1", "n2"))
    return plan(Snapshot(now, 1, 60.0, nodes, tuple(jobs)), targets, LIMITS)


def kinds(actions):
    return [(type(action), action.uid) for action in actions]


def test_a_held_job_with_a_target_is_started_there():
    """Whoever holds it, a job that may start and has a place is started."""
    for hold in (Hold.ADMIN, Hold.USER):
        (action,) = missing([job(hold=hold)], {"a": HERE})
        assert isinstance(action, Start)
        assert action.placement == HERE


def test_a_blocked_job_is_never_started():
    """Its target is ignored; if it is queued already, it is held, in the words of what blocks it."""
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
    """Released elsewhere, by somebody else, without a turn or too long ago: held again."""
    actions = missing([job(status=Status.QUEUED, released=released, released_at=released_at)], targets)
    assert kinds(actions) == ([(HoldJob, "a")] if acts else [])


def test_a_queued_job_is_not_late_while_its_nodes_are_being_vacated():
    """The time to start counts only when the jobs that hold its nodes have left."""
    late = job(status=Status.QUEUED, released=HERE, released_at=900.0)
    victim = job("v", Status.RUNNING, placement=HERE, stop_requested=995.0)
    assert missing([late, victim], {"a": HERE}) == ()


def test_a_running_job_in_its_place_is_left_alone():
    """A kept placement causes no action."""
    for preempt in Preempt:
        assert missing([job(status=Status.RUNNING, placement=HERE, preempt=preempt)], {"a": HERE}) == ()


def test_a_running_job_that_must_go_is_stopped_with_a_deadline_once():
    """It is asked once, and requeued once the grace is over."""
    run = job(status=Status.RUNNING, placement=HERE)
    (action,) = missing([run], {})
    assert isinstance(action, Stop)
    assert action.deadline == 1030.0
    assert missing([replace(run, stop_requested=975.0)], {}) == ()
    assert kinds(missing([replace(run, stop_requested=965.0)], {})) == [(Requeue, "a")]


def test_a_stop_is_not_taken_back():
    """A job whose target is its placement again is waited for, and requeued if it does not answer the stop."""
    run = job(status=Status.RUNNING, placement=HERE, stop_requested=975.0)
    assert missing([run], {"a": HERE}) == ()
    assert kinds(missing([replace(run, stop_requested=965.0)], {"a": HERE})) == [(Requeue, "a")]


def test_a_job_that_cannot_be_preempted_is_never_stopped():
    """Neither preempt=no nor a GPU job with preempt=suspend is touched while it runs."""
    for preempt in (Preempt.NO, Preempt.SUSPEND):
        assert missing([job(status=Status.RUNNING, placement=HERE, preempt=preempt)], {}) == ()


def test_a_cpu_only_job_is_paused_where_it_is():
    """Without a target it is suspended; it is never moved."""
    place = Placement(("n1",), 0, None)
    run = cpu_job("a", Status.RUNNING, placement=place)
    assert kinds(missing([run], {})) == [(Suspend, "a")]
    assert missing([run], {"a": Placement(("n2",), 0, None)}) == ()


def test_a_suspended_job_goes_on_when_its_cpus_are_free():
    """It waits for the jobs that got its CPUs to leave, and for jobs resumed before it."""
    place = Placement(("n1",), 0, None)
    paused = cpu_job("a", Status.SUSPENDED, placement=place, suspended_by_us=True)
    other = cpu_job("b", Status.RUNNING, placement=place)
    assert kinds(missing([paused, other], {"a": place})) == [(Suspend, "b")]
    assert kinds(missing([paused, replace(other, status=Status.STOPPING)], {"a": place})) == []
    assert kinds(missing([paused], {"a": place})) == [(Resume, "a")]
    both = [paused, replace(paused, uid="b")]
    assert kinds(missing(both, {"b": place, "a": place})) == [(Resume, "b")]


def test_a_suspension_that_is_not_ours_is_left_alone():
    """Only the admin who suspended it resumes it."""
    place = Placement(("n1",), 0, None)
    assert missing([cpu_job("a", Status.SUSPENDED, placement=place)], {"a": place}) == ()


def test_the_successor_is_queued_before_its_victim_is_stopped():
    """Starts come before stops, and the victim is told for whom."""
    actions = missing([job("v", Status.RUNNING, placement=HERE), job("s")], {"s": HERE})
    assert kinds(actions) == [(Start, "s"), (Stop, "v")]
    assert reason_words.words(actions[1].reason) == "preempted for 1s"


def test_more_important_jobs_come_first():
    """Within one kind of action, the order is that of the targets."""
    actions = missing([job("a"), job("b"), job("c")], {"c": HERE, "a": THERE, "b": HERE})
    assert [action.uid for action in actions] == ["c", "a", "b"]


class IdealSlurm:
    """Does what it is told at once, starts a queued job when its nodes are free, and ends runs one poll later.

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
                job = replace(job, status=Status.HELD, hold=Hold.ADMIN, released=None, released_at=None)
            case Start(placement=place):
                job = replace(job, status=Status.QUEUED, hold=Hold.NONE, released=place, released_at=self.now)
            case Suspend():
                job = replace(job, status=Status.SUSPENDED, suspended_by_us=True)
            case Stop():
                job = replace(job, stop_requested=self.now)
            case Requeue():
                job = replace(job, status=Status.STOPPING)
            case Resume():
                job = replace(job, status=Status.RUNNING, suspended_by_us=False)
        self.jobs[job.uid] = job

    def tick(self):
        """Ten seconds: runs that were ending end, queued jobs start where enough is free."""
        self.now += 10.0
        for job in list(self.jobs.values()):
            if job.status is Status.STOPPING:
                gone = {"placement": None, "last_placement": job.placement, "stop_requested": None}
                self.jobs[job.uid] = replace(job, status=Status.HELD, hold=Hold.ADMIN, **gone)
            elif job.status is Status.RUNNING and job.stop_requested is not None and job.uid not in self.deaf:
                self.jobs[job.uid] = replace(job, status=Status.STOPPING)
        for job in list(self.jobs.values()):
            if job.status is Status.QUEUED and job.released is not None:
                started = replace(job, status=Status.RUNNING, placement=job.released, released=None)
                if not overfull(self.nodes, [*self.holdings(), held(started)]):
                    self.jobs[job.uid] = started
        assert overfull(self.nodes, self.holdings()) == []

    def holdings(self):
        return [holding for job in self.jobs.values() if (holding := held(job)) is not None]


@given(st.data())
def test_the_plan_leads_to_exactly_the_targets(data):
    """From any state, repeated plans end within fifteen polls with the targets running and nothing else."""
    shot = data.draw(snapshots(blocked=True))
    policy = FixedPolicy(lambda view: data.draw(grants_for(view)))
    targets = run_round(shot, policy, None).targets
    deaf = data.draw(st.sets(st.sampled_from([job.uid for job in shot.jobs]))) if shot.jobs else set()
    slurm = IdealSlurm(shot, deaf)
    for _ in range(15):
        actions = plan(slurm.snapshot(), targets, LIMITS)
        order = [ORDER.index(type(action)) for action in actions]
        assert order == sorted(order)
        assert len({action.uid for action in actions}) == len(actions)
        for action in actions:
            slurm.do(action)
        slurm.tick()
    assert plan(slurm.snapshot(), targets, LIMITS) == ()
    paused = {job.uid for job in shot.jobs if job.status is Status.SUSPENDED and not job.suspended_by_us}
    runs = {job.uid: job.placement for job in slurm.jobs.values() if job.status is Status.RUNNING}
    assert runs == {uid: place for uid, place in targets.items() if uid not in paused}


@given(st.data())
def test_a_plan_depends_on_what_is_not_on_how_it_is_listed(data):
    """The order of the jobs in the snapshot does not matter."""
    shot = data.draw(snapshots(blocked=True))
    targets = run_round(shot, FixedPolicy(lambda view: data.draw(grants_for(view))), None).targets
    shuffled = replace(shot, jobs=tuple(data.draw(st.permutations(shot.jobs))))
    first, second = plan(shot, targets, LIMITS), plan(shuffled, targets, LIMITS)
    assert [(type(a), a.uid) for a in first if not isinstance(a, Resume)] == [
        (type(a), a.uid) for a in second if not isinstance(a, Resume)
    ]
    assert first == second


def test_loads_are_counted_per_node():
    """The tests' own bookkeeping notices a node that is one GPU over."""
    nodes = (Node("n1", "v100", 2, 8, 8),)
    two, one = job("a", gpus=2), job("b")
    full = load(two, Placement(("n1",), 2, "v100"))
    assert overfull(nodes, [full]) == []
    assert overfull(nodes, [full, load(one, HERE)]) == ["n1"]


# -- two jobs on one GPU


def shares(free, held, partners=(), turns=(), **more):
    """One node, n1; the jobs that hold halves of its GPUs, and the pairs that should share."""
    both = {one: other for pair in partners for one, other in (pair, pair[::-1])}
    shards = GpuShards(2, {"n1": free}, {uid: {"n1": gpu} for uid, gpu in held.items()}, **more)
    return GpuSharing(both, frozenset(turns), shards)


def part(uid, status=Status.RUNNING, **more):
    more.setdefault("placement", HERE if status is not Status.HELD else None)
    return job(uid, status, half_gpus=True, **more)


def shared(jobs, shares, targets=None, now=1000.0):
    nodes = (Node("n1", "v100", 4, 16, 64),)
    targets = dict.fromkeys((job.uid for job in jobs), HERE) if targets is None else targets
    return plan(Snapshot(now, 1, 60.0, nodes, tuple(jobs)), targets, LIMITS, shares)


def test_a_pair_starts_together_on_a_part_each():
    """Both are released in one poll, where no GPU is half free."""
    actions = shared([job("a"), job("b")], shares((2, 2), {}, [("a", "b")]))
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
def test_a_job_waits_for_a_partner_that_is_still_elsewhere(partner):
    """Alone it could land on another GPU than the partner later."""
    actions = shared([job("a"), partner], shares((2, 2), {}, [("a", "b")]))
    assert Start not in [type(action) for action in actions]


def test_a_partner_that_changes_restarts_no_job():
    """A job on half a GPU keeps it: the new co-runner starts there, or none does."""
    holder = part("a")
    assert shared([holder], shares((1, 2), {"a": 0})) == ()
    (action,) = shared([holder, job("c")], shares((1, 2), {"a": 0}, [("a", "c")]))
    assert (type(action), action.uid, action.half_gpus) == (Start, "c", True)


def test_a_partner_that_could_not_come_is_no_reason_to_wait_for_ever():
    """Slurm would put it on a GPU before this one: both start anew, together."""
    (action,) = shared([part("a"), job("c")], shares((2, 1), {"a": 1}, [("a", "c")]))
    assert (type(action), action.uid) == (Stop, "a")


def test_a_half_free_gpu_in_the_way_of_a_pair_is_cleared():
    """Slurm would put one of the pair there."""
    actions = shared([part("x"), job("a"), job("b")], shares((1, 2), {"x": 0}, [("a", "b")]))
    assert kinds(actions) == [(Stop, "x")]
    behind = shared([part("x"), job("a"), job("b")], shares((2, 1), {"x": 1}, [("a", "b")]))
    assert kinds(behind) == [(Start, "a"), (Start, "b")]


def test_two_that_are_no_longer_to_share_are_parted():
    """The less important restarts, unless only it awaits another co-runner."""
    pair = {"a": 0, "b": 0}
    assert kinds(shared([part("a"), part("b")], shares((0, 2), pair))) == [(Stop, "b")]
    actions = shared([part("a"), part("b"), job("c")], shares((0, 2), pair, [("b", "c")]))
    assert kinds(actions) == [(Stop, "a")]


def test_who_has_a_whole_gpu_restarts_before_it_shares_it():
    """Slurm cannot take half of it away."""
    whole = job("a", Status.RUNNING, placement=HERE)
    assert kinds(shared([whole, job("b")], shares((0, 2), {}, [("a", "b")]))) == [(Stop, "a")]


def test_pairs_of_one_node_start_one_after_the_other():
    """Slurm would mix them up."""
    jobs = [job(uid) for uid in "abcd"]
    pairs = [("a", "b"), ("c", "d")]
    assert kinds(shared(jobs, shares((2, 2), {}, pairs))) == [(Start, "a"), (Start, "b")]
    queued = [part(uid, Status.QUEUED, released=HERE, released_at=999.0, placement=None) for uid in "ab"]
    assert shared([*queued, *jobs[2:]], shares((2, 2), {}, pairs)) == ()


def test_a_job_leaves_a_gpu_that_slurm_has_given_away():
    """It would share the GPU with a job of somebody else."""
    assert kinds(shared([part("a")], shares((0, 2), {"a": 0}, overlapping=frozenset("a")))) == [(Stop, "a")]


def test_whole_gpus_are_not_asked_for_where_slurm_counts_a_half_free_gpu_as_free():
    """The job that has it restarts first; where Slurm counts correctly, none does."""
    jobs = [part("x"), job("a", whole_gpus=True)]
    assert kinds(shared(jobs, shares((1, 2), {"x": 0}, assigns_half_free=True))) == [(Stop, "x")]
    assert kinds(shared(jobs, shares((2, 1), {"x": 1}, assigns_half_free=True))) == [(Start, "a")]
    assert kinds(shared(jobs, shares((1, 2), {"x": 0}))) == [(Start, "a")]


def rests(uid, since, **more):
    return part(uid, Status.SUSPENDED, suspended_by_us=True, suspended_at=since, **more)


TURNS = {"held": {"a": 0, "b": 0}, "partners": [("a", "b")], "turns": "ab"}


def test_of_two_that_take_turns_one_runs():
    """The job with more service pauses first; after a time slice they swap, and never do both run or pause."""
    had_more = part("a", attained={"v100": 9.0})
    assert kinds(shared([had_more, part("b")], shares((0,), **TURNS))) == [(Suspend, "a")]
    assert shared([rests("a", 950.0), part("b")], shares((0,), **TURNS)) == ()
    over = shared([rests("a", 940.0), part("b")], shares((0,), **TURNS))
    assert kinds(over) == [(Suspend, "b"), (Resume, "a")]
    assert kinds(shared([rests("a", 940.0), rests("b", 950.0)], shares((0,), **TURNS))) == [(Resume, "a")]


@pytest.mark.parametrize("target", [HERE, THERE, None])
@pytest.mark.parametrize("partner", [None, "running", "elsewhere"])
def test_no_job_is_paused_without_time_slices(target, partner):
    """Whatever becomes of it, it is resumed first: a suspended trainer cannot act on a stop."""
    jobs = [rests("a", 999.0)]
    if partner is not None:
        jobs.append(part("b", placement=HERE if partner == "running" else THERE))
    targets = {uid: place for uid, place in (("a", target), ("b", HERE)) if place is not None}
    wanted = shares((0,), {"a": 0, "b": 0} if partner == "running" else {"a": 0})
    assert (Resume, "a") in kinds(shared(jobs, wanted, targets))
