"""The daemon's heart without its clockwork: look, decide, act, publish. One call is one poll."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from metasched.configuration.config import Config
from metasched.core.model import Action, Job, Placement, Snapshot, Status
from metasched.core.policy import Policy
from metasched.core.reasons import Code, Reason
from metasched.daemon.actuator import Actuator, RoundFacts
from metasched.daemon.background_solver import BackgroundSolver
from metasched.daemon.status_publisher import Publisher, why_no_sharing
from metasched.observe.observer import Observation, Observer
from metasched.replay.snapshot_codec import encode
from metasched.scheduling.engine import PolicyViolationError, RoundResult, run_round
from metasched.scheduling.gpu_sharing import GpuSharing
from metasched.scheduling.plan import Timeouts, plan
from metasched.shared_dir.lock import DaemonLock
from metasched.shared_dir.mailbox import Mailbox
from metasched.slurm.client import SlurmClient
from metasched.slurm.errors import SlurmError
from metasched.store import Store, StoreError

DAY = 86400.0
NEXT_ROUND = Reason(Code.NEXT_ROUND)

log = structlog.get_logger()


class Controller:
    """One cluster under one policy.

    Args:
        config: checked.
        client: to Slurm.
        store: opened in this thread.
        mailbox: of the shared directory.
        policy: the chosen one.
        lock: checked before each poll, and again before it acts; None where nothing real is written (dry run, tests).
        clock: unix seconds.

    Raises:
        SlurmError: Slurm's settings could not be read.
    """

    def __init__(
        self,
        config: Config,
        client: SlurmClient,
        store: Store,
        mailbox: Mailbox,
        policy: Policy,
        *,
        lock: DaemonLock | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.policy = policy
        self._store = store
        self._lock = lock
        self._clock = clock
        settings = client.settings()
        self._reconciler = Observer(config, client, store, mailbox, settings)
        self._actuator = Actuator(config, client, store, mailbox, settings)
        self._publisher = Publisher(store, mailbox.shared, settings.cluster)
        last = store.last_round()
        self._round = last.round if last is not None else 0
        self._round_at = last.at if last is not None else None
        self._targets: Mapping[str, Placement] = store.targets()
        self._shares = GpuSharing(*store.target_shares())
        self._reasons: Mapping[str, Reason] = store.current_reasons()
        self._owes_round = True  # much may have changed while nobody looked
        self._accepting: frozenset[tuple[str, str]] | None = None
        self._idle: frozenset[str] = frozenset()  # jobs that have a place and may not start there
        self._blocked: frozenset[str] = frozenset()
        self._sharing: bool | None = None
        self._back_at: float | None = None
        self._looked_at = 0.0 if last is None else last.at
        self._trouble: str | None = None
        self._beside = BackgroundSolver()

    def close(self) -> None:
        """End what goes on beside the rounds."""
        self._beside.close()

    def reconfigure(self, config: Config, policy: Policy) -> None:
        """Go on under another configuration, with a new round at the next poll; paths stay what they are."""
        self._beside.close()
        self.config = config
        self.policy = policy
        self._reconciler.config = config
        self._actuator.config = config
        self._owes_round = True

    def poll(self) -> float:
        """Look; begin a round if one is due; do what it still lacks; publish.

        Returns:
            Seconds until the next poll is due.

        Raises:
            StoreError, LockLostError: the daemon must end; nothing was done to Slurm after it.
        """
        now = self._clock()
        schedule = self.config.schedule
        self._check_lock()
        if now < self._looked_at:
            log.warning("clock_set_back", seconds=self._looked_at - now)
            self._store.clock_set_back(now)
        self._looked_at = now
        try:
            seen = self._reconciler.observe(now, self._round)
        except SlurmError as error:
            self._lost_sight(error, now)
            return schedule.poll_seconds
        if self._trouble is not None:
            # After a controller's restart its picture may be some seconds old: watch before acting on it.
            log.info("slurm_is_back", acting_in_seconds=self.config.slurm.settle_seconds)
            self._trouble = None
            self._back_at = now
        self._note_events(seen)
        if self._back_at is not None and 0 <= now - self._back_at < self.config.slurm.settle_seconds:
            return min(schedule.poll_seconds, self._back_at + self.config.slurm.settle_seconds - now)
        self._check_lock()  # looking may have taken long
        if self._round_due(now):
            self._decide(seen.snapshot)
        try:
            done = self._actuator.perform(self._plan(seen), seen, self._round_facts())
        except SlurmError as error:
            self._lost_sight(error, now)
            done = 0
        self._publisher.publish(self, seen)
        if self.config.history.days:
            self._store.forget_some(now - self.config.history.days * DAY)
        least = max(schedule.busy_poll_seconds, self._clock() - now)  # we ask of slurmctld at most half its time
        return least if done or seen.busy else min(schedule.poll_seconds, max(self.next_round - now, least))

    @property
    def round_number(self) -> int:
        """The present round; 0 before the first."""
        return self._round

    @property
    def round_at(self) -> float | None:
        """When it was decided."""
        return self._round_at

    @property
    def next_round(self) -> float:
        """When the next one is due at the latest."""
        return 0.0 if self._round_at is None else self._round_at + self.config.schedule.round_seconds

    @property
    def trouble(self) -> str | None:
        """What keeps us from talking to Slurm."""
        return self._trouble

    def reason(self, uid: str) -> Reason:
        """Why a job runs or waits, as the present round sees it."""
        return self._reasons.get(uid, NEXT_ROUND)

    def look(self) -> Snapshot:
        """What is now, as policies see it.

        Raises:
            SlurmError: Slurm could not be read.
        """
        seen = self._reconciler.observe(self._clock(), self._round).snapshot
        return replace(seen, jobs=tuple(_awake(job) for job in seen.jobs))

    def plan_of_a_round(self) -> tuple[Snapshot, Sequence[Action]]:
        """Look and decide, and say what would be done (for a dry run on a copy of the store).

        Raises:
            SlurmError: Slurm could not be read.
        """
        seen = self._reconciler.observe(self._clock(), self._round)
        self._decide(seen.snapshot)
        self.close()
        return seen.snapshot, self._plan(seen)

    def _check_lock(self) -> None:
        if self._lock is not None:
            self._lock.check()

    def _note_events(self, seen: Observation) -> None:
        accepting = frozenset((node.name, node.reservation) for node in seen.snapshot.nodes if node.accepts)
        blocked = frozenset(job.uid for job in seen.snapshot.jobs if _may_not_start(job))
        idle = blocked & self._targets.keys()
        freed = {uid for uid in self._blocked - blocked if (job := seen.snapshot.job.get(uid)) and not job.active}
        if freed:  # what the last round said of these is no longer true
            self._reasons = {uid: reason for uid, reason in self._reasons.items() if uid not in freed}
        wanted = (
            ((seen.arrived or freed) and self.policy.wakes_on_arrival)
            or (seen.completed and self.policy.wakes_on_completion)
            or accepting != self._accepting
            or not idle <= self._idle
        )
        # What Slurm has refused is tried again in the rounds that come anyway.
        put_off = {uid for uid in blocked if _is_deferred(seen.snapshot.job[uid])}
        self._accepting, self._idle, self._blocked = accepting, idle, blocked - put_off
        if seen.snapshot.sharing is not self._sharing:
            self._sharing = seen.snapshot.sharing
            log.info("sharing", two_jobs_on_a_gpu=self._sharing, why_not=why_no_sharing(self.config, seen) or None)
        self._owes_round = self._owes_round or bool(wanted)

    def _round_due(self, now: float) -> bool:
        if self._round_at is None or not self._round_at <= now < self.next_round:  # before it: the clock was set back
            return True
        return self._owes_round and now - self._round_at >= self.config.schedule.min_round_seconds

    def _decide(self, seen: Snapshot) -> None:
        """Decide one round and commit it; a policy that fails leaves the last round's targets in force."""
        number = self._round + 1
        snapshot = Snapshot(
            now=seen.now,
            round=number,
            round_seconds=seen.round_seconds,
            nodes=seen.nodes,
            jobs=tuple(_awake(job) for job in seen.jobs),
            sharing=seen.sharing,
            precomputed=self._beside.take() if self.policy.solves_in_background else None,
            quotas=seen.quotas,
        )
        self._round_at = seen.now
        self._owes_round = False
        begun = time.perf_counter()
        try:
            result = run_round(snapshot, self.policy, self._store.policy_state(self.policy.name))
            shares = _shares(self.policy, snapshot, result)
            kept = [job for job in snapshot.jobs if _keeps(job, result.targets, shares)]
            self._store.commit_round(
                number,
                at=seen.now,
                policy=self.policy.name,
                parameters=self.policy.parameters.model_dump(mode="json"),
                state=result.state,
                targets=result.targets,
                reasons=result.reasons,
                decide_seconds=time.perf_counter() - begun,
                snapshot=encode(snapshot) if self.config.history.snapshots_bytes else b"",
                keep_snapshots_bytes=self.config.history.snapshots_bytes,
                summary={"jobs": len(snapshot.jobs), "nodes": len(snapshot.nodes), "capacity": dict(snapshot.capacity)},
                shares=shares.partners,
                time_slicing=shares.time_slicing,
                renewed=[job.uid for job in kept],
            )
        except StoreError:
            raise
        except Exception as error:  # a policy may be third-party code: it must not take the daemon down
            log.exception("policy_failed", policy=self.policy.name, round=number)
            self._store.event(
                "policy_failed", f"{self.policy.name}: {error}; the last round stays in force", at=seen.now
            )
            return
        if self.policy.solves_in_background:
            self._beside.begin(snapshot, self.policy, result.state)
        self._round = number
        self._targets = result.targets
        self._shares = shares
        self._reasons = result.reasons
        log.info("round", round=number, policy=self.policy.name, jobs=len(snapshot.jobs), run=len(result.targets))
        self._actuator.renew(kept, self._round_facts())

    def _plan(self, seen: Observation) -> Sequence[Action]:
        schedule = self.config.schedule
        limits = Timeouts(schedule.grace_seconds, self._actuator.start_limit, schedule.slice_seconds)
        shares = replace(self._shares, seats=seen.seats)
        return plan(seen.snapshot, self._targets, limits, shares, self._actuator.unsent)

    def _round_facts(self) -> RoundFacts:
        return RoundFacts(number=self._round, end=self.next_round)

    def _lost_sight(self, error: SlurmError, now: float) -> None:
        if self._trouble is None:
            log.warning("slurm_unreachable", error=str(error))
            self._store.event("slurm_unreachable", str(error), at=now)
        self._trouble = str(error)
        self._owes_round = True  # arrivals of a look that broke off are not told again
        self._publisher.say(self)


def _awake(job: Job) -> Job:
    """A job that rests while another has its turn on the same GPU runs, as policies see it."""
    rests = job.status is Status.SUSPENDED and job.suspended_by_us and job.gpus > 0
    return job.evolve(status=Status.RUNNING) if rests else job


def _may_not_start(job: Job) -> bool:
    return job.blocked is not None and not job.active


def _is_deferred(job: Job) -> bool:
    return job.blocked is not None and job.blocked.code == Code.START_DEFERRED


def _keeps(job: Job, targets: Mapping[str, Placement], shares: GpuSharing) -> bool:
    """Whether a round leaves a job what it has."""
    fits = targets.get(job.uid) == job.placement and (job.half_gpus or job.uid not in shares.partners)
    return job.status is Status.RUNNING and job.stop_requested is None and fits


def _shares(policy: Policy, snapshot: Snapshot, result: RoundResult) -> GpuSharing:
    """Who is to share GPUs after a round.

    Raises:
        PolicyViolationError: a job is to share that can have whole GPUs only.
    """
    for uid in result.co_runners:
        if snapshot.job[uid].whole_gpus:
            raise PolicyViolationError(policy.name, uid, "is to share its GPUs, and asked for whole ones")
    guests = (grant for grant in (*result.decision.grants, *result.decision.fallback) if grant.time_slicing)
    alternate = [
        uid for grant in guests for uid in (grant.uid, result.co_runners.get(grant.uid)) if uid in result.co_runners
    ]
    return GpuSharing(dict(result.co_runners), frozenset(uid for uid in alternate if uid is not None))
