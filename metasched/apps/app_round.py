"""One round of all apps, between the snapshot and the policy.

    apps     = the live jobs by app, with what the state knows of members that are gone
    answers  = each app's tuner steps once, over the app's live trials
    ended    = the trials that this round or an earlier one has ended: an end is for good
    snapshot = jobs that are neither ended nor held, with capped GPUs, and the apps

Every policy runs the same searches, because it sees their result only. A snapshot without apps passes through as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from metasched.apps.app_state import AppRecord, Records, ended, read, write
from metasched.apps.live_apps import LiveApps
from metasched.apps.membership import app_name, is_trial, members_by_app, settings_of
from metasched.apps.tuners.registry import make_tuner
from metasched.apps.tuners.tuner import Search, TunerAnswer, TunerError
from metasched.core.apps import App, AppsState, TrialOrder, TunerSettings
from metasched.core.model import Job, Snapshot, Status
from metasched.core.reasons import Code, Reason
from metasched.core.retention import is_blocked_from_start, is_pinned, suspended_by_others

NO_STATE = AppsState()
NO_ANSWER = TunerAnswer()


@dataclass(frozen=True, slots=True)
class AppRound:
    """The outcome of a round of apps.

    Attributes:
        snapshot: what the policy may see: without held and ended jobs, with caps and apps.
        held: why each held job must not train for now, by uid. It gives up its allocation.
        ends: why each live job that was ended is to end for good, by uid; in every round until it is gone.
        capped: for each job that may have fewer GPUs than its tag says, by how many, by uid.
        state: the state for the next round.
    """

    snapshot: Snapshot
    held: Mapping[str, Reason]
    ends: Mapping[str, Reason]
    state: AppsState
    capped: Mapping[str, Reason] = field(default_factory=dict)


def apply_apps(snapshot: Snapshot, state: AppsState = NO_STATE, *, singles: bool = False) -> AppRound:
    """Group jobs into apps, and let the apps' tuners cap, hold and end trials. Pure.

    Args:
        snapshot: all jobs and nodes.
        state: the state after the latest round.
        singles: whether jobs without an app are apps of one in ``Snapshot.apps``.
    """
    before = read(state)
    if not singles and not before.apps and all(job.app is None for job in snapshot.jobs):
        return AppRound(snapshot, {}, {}, NO_STATE)
    groups = members_by_app(job for job in snapshot.jobs if job.status is not Status.FINISHED)
    records = {
        uid: (before.apps.get(uid) or AppRecord(members[0].submitted)).with_members(members)
        for uid, members in groups.items()
        if members[0].app is not None
    }
    live = _live_apps(before, snapshot.now, groups, records)
    orders: dict[str, list[TrialOrder]] = {}
    for order in snapshot.trial_orders:
        orders.setdefault(order.app, []).append(order)
    apps: list[App] = []
    caps: dict[str, int] = {}
    held: dict[str, Reason] = {}
    ends: dict[str, Reason] = {}
    for uid, members in groups.items():
        if uid not in records:
            if singles:
                apps.append(_app_of_one(members[0], live, snapshot.now))
            continue
        record, settings, answer = _tune(records[uid], members, snapshot.completed_trials, orders.get(uid, ()))
        records[uid] = record
        app = App(
            uid=uid,
            name=app_name(uid, members),
            user=members[0].user,
            members=tuple(dict.fromkeys((*record.entrants, *(job.uid for job in members)))),
            first_submitted=record.first_submitted,
            attained_service=record.attained_service,
            live_integral=live.integral(record.first_submitted, snapshot.now),
            tuner=settings,
            brackets=answer.brackets,
            problem=answer.problem,
        )
        apps.append(app)
        reasons = record.reasons
        ends |= {job.uid: reasons[job.uid] for job in members if job.uid in reasons}
        held |= {job.uid: answer.holds[job.uid] for job in members if job.uid in answer.holds and _can_wait(job)}
        caps |= answer.caps
    left = held.keys() | ends.keys()
    whole = {job.uid: job.max_gpus for job in snapshot.jobs if job.uid in caps}
    shown = tuple([_capped(job, caps.get(job.uid)) for job in snapshot.jobs if job.uid not in left])
    lowered = {job.uid: job.max_gpus for job in shown if job.uid in caps and job.max_gpus < whole[job.uid]}
    capped = {uid: Reason.of(Code.TRIAL_CAPPED, gpus=gpus) for uid, gpus in lowered.items()}
    after = write(Records(snapshot.now, live.steps, records)) if records or singles else NO_STATE
    return AppRound(replace(snapshot, jobs=shown, apps=tuple(apps)), held, ends, after, capped)


def _live_apps(
    before: Records, now: float, groups: Mapping[str, Sequence[Job]], records: Mapping[str, AppRecord]
) -> LiveApps:
    """The number of live apps until now. An app whose members all wait for something else than GPUs does not count."""
    firsts = {
        uid: records[uid].first_submitted if uid in records else members[0].submitted for uid, members in groups.items()
    }
    live = [uid for uid, members in groups.items() if not all(map(is_blocked_from_start, members))]
    arrivals = [first for uid in live if before.now < (first := firsts[uid]) <= now and uid not in before.apps]
    return LiveApps(before.live).after(now, len(live), arrivals, min(firsts.values(), default=now))


def _app_of_one(job: Job, live: LiveApps, now: float) -> App:
    """The app of a job that is in no other."""
    service, integral = job.attained_service, live.integral(job.submitted, now)
    return App(job.uid, job.name, job.user, (job.uid,), job.submitted, service, integral)


def _tune(
    record: AppRecord, members: Sequence[Job], completed: frozenset[str], orders: Sequence[TrialOrder]
) -> tuple[AppRecord, TunerSettings | None, TunerAnswer]:
    """One step of one app's tuner.

    Returns:
        the record after it, the tuner that the members' tags name, and its answer. A tuner that cannot work changes
        nothing, and its answer has the problem.
    """
    settings = None
    trials = [job for job in members if is_trial(job) and job.uid not in record.ended]
    try:
        settings = settings_of(members)
        if settings is None or not trials:
            return record, settings, NO_ANSWER
        search = Search(
            trials=trials,
            entrants=record.entrants,
            ended=frozenset(record.ended),
            completed=completed,
            orders=orders,
            state=record.tuner,
        )
        answer = make_tuner(settings).step(search)
    except TunerError as error:
        named = "" if settings is None else f"{settings.tag}: "
        return record, settings, TunerAnswer(problem=Reason.of(Code.TUNER_UNUSABLE, error=f"{named}{error}"))
    return replace(record, ended=record.ended | ended(answer.ends), tuner=dict(answer.state)), settings, answer


def _can_wait(job: Job) -> bool:
    """Whether a hold can take effect: what holds an allocation for good trains on."""
    return not is_pinned(job) and not suspended_by_others(job)


def _capped(job: Job, cap: int | None) -> Job:
    """The job with its GPUs capped, but never below its fewest, nor below what it holds or was released for."""
    place = job.held_or_released
    most = max(cap or 0, job.min_gpus, place.gpus if place is not None else 0)
    if cap is None or most >= job.max_gpus:
        return job
    return job.evolve(max_gpus=most, gpus=min(job.gpus, most))
