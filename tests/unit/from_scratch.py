"""Comparison of each poll of a controller with the same poll made from scratch."""

from metasched.core.model import Job, Status
from metasched.daemon.cluster_state import ClusterStateBuilder
from metasched.daemon.status_publisher import _deferred
from metasched.intake.admission import INTAKE_CONTINUES, admission
from metasched.observe.job_identification import identify
from metasched.observe.node_inventory import NodeInventory
from metasched.observe.observed_job import ENDED, status_of
from metasched.observe.reservations import Reservations
from metasched.shared_dir import published_status


class _AllJobs:
    """In place of what the controller remembers of the jobs that may need an action: all jobs."""

    def __init__(self, state):
        self._uids = tuple(job.uid for job in state.snapshot.jobs)

    def of(self, *_):
        return self._uids


def check_every_poll(controller, slurm):
    """Let every poll of the controller fail whose result is not what a poll from scratch gives, field by field.

    Returns:
        A function that returns the latest state; None before the first.
    """
    observer, builder, store = controller._observer, controller._state_builder, controller._store
    observe, take_in, build, make_plan = observer.observe, controller._intake.take_in, builder.build, controller._plan
    latest = [None]

    def checked_observe(now):
        observation = observe(now)
        assert list(observation.records.values()) == store.live_jobs()
        assert list(observation.nodes) == list(slurm.nodes())
        _check_observation(observation, controller, slurm)
        return observation

    def checked_take_in(observation, limits):
        new, expected = observation.new, admission(observation, limits)
        recorded = take_in(observation, limits)
        later = dict.fromkeys((uid for uid in expected.admitted if uid not in recorded), INTAKE_CONTINUES)
        reasons = {**expected.deferred, **later}
        assert controller._intake.deferred == {uid: (new[uid], reason) for uid, reason in reasons.items()}
        assert recorded.keys() == {uid for uid in observation.ours if uid in store.live_records()}
        return recorded

    def checked_build(observation, tracked, config, number):
        state = build(observation, tracked, config, number)
        fresh = ClusterStateBuilder(store, controller._intake, controller._estimates, controller._reports)
        fresh.all_losses = builder.all_losses
        expected = fresh.build(observation, tracked, config, number)
        _check_jobs(state.snapshot.jobs, expected.snapshot.jobs)
        assert state == expected
        assert list(state.jobs) == list(expected.jobs)
        assert state.holding == expected.holding
        assert builder.contradicted == fresh.contradicted
        assert builder.ends == fresh.ends
        assert builder.subjects == fresh.subjects
        for uid, job in tracked.live.items():
            assert job.record == store.require_job(uid)
            assert job.status is status_of(job.slurm) or job.slurm.state in ENDED
        latest[0] = state
        return state

    def checked_plan(state):
        actions, known = make_plan(state), controller._actionable
        controller._actionable = _AllJobs(state)
        expected, controller._actionable = make_plan(state), known
        assert actions == expected
        return actions

    observer.observe, builder.build, controller._plan = checked_observe, checked_build, checked_plan
    controller._intake.take_in = checked_take_in
    return lambda: latest[0]


def check_published(controller, state, shared):
    """Compare the published status with what the daemon knows now, where the latest poll published it."""
    status = published_status.read(shared)
    if status.published != state.snapshot.now:
        return
    publisher, now = controller._publisher, state.snapshot.now
    assert [job.uid for job in status.jobs] == [job.uid for job in state.snapshot.jobs]
    assert status.deferred == _deferred(controller.deferred)
    waiting = [uid for uid in controller.ranked if uid in state.jobs and _waits(state.snapshot.job[uid])]
    assert {job.uid: job.place for job in status.jobs if job.place} == {uid: n for n, uid in enumerate(waiting, 1)}
    for found in status.jobs:
        job = state.snapshot.job[found.uid]
        expected = publisher._job(job, state, controller)
        for name in expected.__struct_fields__:
            one, other = getattr(found, name), getattr(expected, name)
            if name in {"attained_service", "ran_seconds", "waited_seconds"}:
                assert abs(one - other) < 1e-3, (found.uid, name, one, other, now)
            elif name in {"world_sizes", "reason_facts", "reason_also"}:
                assert _plain(one) == _plain(other), (found.uid, name)
            elif name not in {"as_of", "place", "rho"}:  # the reader computes the last two
                assert one == other, (found.uid, name, one, other)


def _waits(job):
    return job.status is Status.HELD and job.blocked is None


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _check_observation(observation, controller, slurm):
    reservations = Reservations(slurm.reservations(), observation.now)
    inventory = NodeInventory.of(observation.nodes, reservations)
    assert inventory.describes_jobs_like(observation.inventory) or observation.inventory.gpu_shards is not None
    identified = identify(observation.listed, observation.records, controller.config.intake, observation.now)
    if identified.by_stamps:
        assert list(identified.ours.items()) == list(observation.ours.items())
        assert list(identified.others) == list(observation.others)


def _check_jobs(jobs, expected):
    """Name the first field that differs, which the comparison of whole states would not."""
    assert [job.uid for job in jobs] == [job.uid for job in expected]
    for job, other in zip(jobs, expected, strict=True):
        for name in Job.__struct_fields__:
            assert getattr(job, name) == getattr(other, name), (job.uid, name)
