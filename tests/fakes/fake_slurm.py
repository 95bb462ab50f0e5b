"""FakeSlurm: Slurm in memory for fast tests, with the contract of the real one and a clock that tests advance.

The fake behaves as the contract tests measured the real Slurm, and raises an error for unknown options and calls.

    slurm = FakeSlurm()                                   # 4 nodes of 4 v100
    job = slurm.add("--gres=gpu:2", comment="metasched", trainer=Trainer(seconds=60))
    slurm.hold(job); slurm.update(job, Geometry(...)); slurm.release(job)
    slurm.tick(1)                                         # now it runs
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count

from metasched.core.model import Hold
from metasched.slurm import field_parsers
from metasched.slurm.associations import Associations
from metasched.slurm.client import OUT_OF_REACH, Geometry, JobState, Reservation, SlurmJob, SlurmNode, SlurmSettings
from metasched.slurm.errors import (
    InvalidArgumentError,
    NoSuchJobError,
    SlurmCommandError,
    SlurmError,
    SlurmUnavailableError,
    WrongJobStateError,
)
from metasched.slurm.update_arguments import update_arguments
from tests.fakes.fake_nodes import MIB, FakeNode, FakeNodes
from tests.fakes.fake_sbatch import parse_options, pending_job

BEGIN_DELAY = 121.0
GRES_SECONDS = 5.0
"""Time after a restart of the controller in which it starts jobs with GPUs in which no step can be created."""
_TERM, _KILL = "SIGTERM", "SIGKILL"
_ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT})
_ACTIVE = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})


@dataclass
class Trainer:
    """The behaviour of a job's script; tests may change it at any time, or override ``started`` and ``signalled``.

    All durations are seconds.

    Attributes:
        seconds: work of all runs together; None for a job that never ends by itself.
        exit_code: exit code of the run that finishes the work.
        stop_signal: the signal at which the trainer checkpoints and exits; others but SIGTERM and SIGKILL are ignored.
        stop_seconds: from that signal (or SIGTERM) to the exit; None for a trainer that ignores both.
        stop_exit_code: exit code of a checkpointed run, which requests a requeue.
        keeps_work: whether work done before a stop counts afterwards.
        done: work of earlier runs, seconds.
        signals: the signals received, as (unix seconds, name).
    """

    seconds: float | None = None
    exit_code: int = 0
    stop_signal: str = "SIGUSR2"
    stop_seconds: float | None = 0.5
    stop_exit_code: int = 85
    keeps_work: bool = True
    done: float = 0.0
    signals: list[tuple[float, str]] = field(default_factory=list)

    def started(self, slurm: FakeSlurm, job: SlurmJob) -> None:
        """Called at the start of each run."""

    def not_launched(self, slurm: FakeSlurm, job: SlurmJob) -> None:
        """Called instead of ``started`` where srun cannot create a step (Invalid generic resource specification)."""
        slurm.exit(job.slurm_job_id, 1, after=0.5)

    def signalled(self, slurm: FakeSlurm, job: SlurmJob, signal: str) -> None:
        """Called when the run gets a signal other than SIGKILL."""
        if self.stop_seconds is not None and signal in (self.stop_signal, _TERM):
            slurm.exit(job.slurm_job_id, self.stop_exit_code, after=self.stop_seconds)


@dataclass
class FakeJob:
    """A job's record as Slurm shows it, and the state that Slurm does not show.

    Attributes:
        shown: the record.
        trainer: the behaviour of the script.
        sticky_hold: whether an administrator's hold waits for the next requeue.
        run: number of starts and ends; an event of an earlier run is recognised by it.
        computing_since: when the present run started or resumed, unix seconds; None while the job does not compute.
        after: state and hold that follow COMPLETING; None for the state that the exit code gives.
        indices: indices of the GPUs held on each node; `shown` has them while the job is not COMPLETING.
        script: the text of the batch script.
    """

    shown: SlurmJob
    trainer: Trainer
    sticky_hold: bool = False
    run: int = 0
    computing_since: float | None = None
    after: tuple[JobState, Hold] | None = None
    indices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    script: str = ""


NODES = tuple(FakeNode(f"n{number}") for number in range(1, 5))


class FakeSlurm:
    """A SlurmClient with a simulated cluster.

    Args:
        nodes: the cluster's nodes.
        now: unix seconds at which the clock starts.
        requeue_exit_hold: exit codes after which a job is requeued and held.
        kill_wait: seconds between SIGTERM and SIGKILL.

    Attributes:
        now: the clock, unix seconds.
        calls: every call of the client, as (method, slurm_job_id or ""), for tests that count.
        accounting: associations and QOS; None where accounting is off.
        leaks_gpus: whether GPUs of a job that starts too soon after a restart stay allocated after its end.
    """

    def __init__(
        self,
        nodes: Sequence[FakeNode] = NODES,
        now: float = 1_800_000_000.0,
        requeue_exit_hold: frozenset[int] = frozenset({85}),
        kill_wait: float = 30.0,
    ) -> None:
        self.now = now
        self.calls: list[tuple[str, str]] = []
        self.accounting: Associations | None = None
        self.leaks_gpus = False
        self._kill_wait = kill_wait
        self._settings = SlurmSettings(
            (22, 5, 8),
            "fake",
            requeue_exit_hold,
            ("lua",),
            values={"AccountingStorageEnforce": "associations,limits,qos"},
        )
        self._jobs: dict[str, FakeJob] = {}
        self._nodes = FakeNodes(nodes, self._jobs)
        self._next_id = 1
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._reachable = True
        self._boot_time = now - 86_400.0
        self._back_at = now
        self._gpus_counted_from = now

    # SlurmClient

    def settings(self) -> SlurmSettings:
        """See SlurmClient."""
        self._call("settings")
        return self._settings

    def boot_time(self) -> float | None:
        """See SlurmClient; whole seconds, as Slurm tells it."""
        self._call("boot_time")
        return float(int(self._boot_time))

    def jobs(self) -> Sequence[SlurmJob]:
        """See SlurmClient."""
        self._call("jobs")
        return tuple(job.shown for job in self._jobs.values())

    def nodes(self) -> Sequence[SlurmNode]:
        """See SlurmClient."""
        self._call("nodes")
        return self._nodes.shown(self.now)

    def jobs_and_nodes(self) -> tuple[Sequence[SlurmJob], Sequence[SlurmNode]]:
        """See SlurmClient; one after the other."""
        return self.jobs(), self.nodes()

    def reservations(self) -> Sequence[Reservation]:
        """See SlurmClient."""
        self._call("reservations")
        return tuple(one for one in self._nodes.reservations.values() if one.end > self.now)

    def racks(self) -> Mapping[str, str]:
        """See SlurmClient; the racks of the nodes."""
        self._call("racks")
        return {node.name: node.rack for node in self._nodes.by_name.values() if node.rack is not None}

    def associations(self) -> Associations | None:
        """See SlurmClient; the attribute ``accounting``, whose limits are not enforced."""
        self._call("associations")
        return self.accounting

    def batch_script(self, slurm_job_id: str) -> str:
        """See SlurmClient."""
        return self._touch("batch_script", slurm_job_id)[0].script

    def hold(self, slurm_job_id: str) -> None:
        """See SlurmClient."""
        for job in self._touch("hold", slurm_job_id, ended=False):
            if job.shown.state in _ACTIVE:
                job.sticky_hold = True
            else:
                self._show(job, hold=Hold.ADMIN, reason="JobHeldAdmin")

    def release(self, slurm_job_id: str) -> None:
        """See SlurmClient."""
        for job in self._touch("release", slurm_job_id, ended=False):
            self._release(job)

    def await_dependency(self, slurm_job_id: str) -> None:
        """See SlurmClient."""
        for job in self._touch("await_dependency", slurm_job_id, JobState.PENDING):
            self._show(job, eligible=OUT_OF_REACH)
            self._release(job)

    def update(self, slurm_job_id: str, geometry: Geometry) -> None:
        """See SlurmClient."""
        update_arguments(geometry)  # refuses the geometries that the real client refuses
        for job in self._touch("update", slurm_job_id, JobState.PENDING):
            if unknown := [name for name in geometry.nodes if name not in self._nodes.by_name]:
                raise SlurmCommandError(f"Invalid node name specified for job {slurm_job_id}: {unknown}")
            per_node, shards = geometry.gpus_per_node or None, geometry.shards_per_node
            if per_node and (shards is None) is (job.shown.shards_per_node is not None):
                raise SlurmCommandError(f"Invalid generic resource (gres) specification for job {slurm_job_id}")
            self._show(
                job,
                nodes_requested=len(geometry.nodes),
                nodes_max=len(geometry.nodes),
                tasks=geometry.tasks,
                cpus=geometry.cpus,
                gpus_per_node=(per_node or job.shown.gpus_per_node) if shards is None else None,
                shards_per_node=shards or job.shown.shards_per_node,
                gpus_total=None if per_node else job.shown.gpus_total,
                gpus_per_task=None if per_node else job.shown.gpus_per_task,
                cpus_per_gpu=None if per_node else job.shown.cpus_per_gpu,
                memory_per_gpu=None if per_node else job.shown.memory_per_gpu,
                gpu_type=geometry.gpu_type if per_node else job.shown.gpu_type,
                required_nodes=tuple(sorted(geometry.nodes)),
                eligible=self.now + geometry.delay,
            )
            if geometry.memory_per_node is not None:
                self._show(job, memory_per_node=-(-geometry.memory_per_node // MIB) * MIB, memory_per_cpu=None)

    def stamp(self, slurm_job_id: str, admin_comment: str) -> None:
        """See SlurmClient."""
        if not admin_comment.isprintable():
            raise InvalidArgumentError(f"not fit for an AdminComment: {admin_comment!a}")
        for job in self._touch("stamp", slurm_job_id, ended=False):
            self._show(job, admin_comment=admin_comment)

    def adopt(self, slurm_job_id: str, admin_comment: str) -> None:
        """See SlurmClient."""
        if not admin_comment.isprintable():
            raise InvalidArgumentError(f"not fit for an AdminComment: {admin_comment!a}")
        for job in self._touch("adopt", slurm_job_id, JobState.PENDING):
            self._show(job, admin_comment=admin_comment, requeue=True, hold=Hold.ADMIN, reason="JobHeldAdmin")

    def set_requeue(self, slurm_job_id: str) -> None:
        """See SlurmClient."""
        for job in self._touch("set_requeue", slurm_job_id, ended=False):
            self._show(job, requeue=True)

    def signal(self, slurm_job_ids: Sequence[str], signal: str) -> Mapping[str, SlurmError]:
        """See SlurmClient."""
        if not re.fullmatch(r"SIG[A-Z0-9]{1,10}", signal):
            raise InvalidArgumentError(f"not a signal: {signal!a}")
        errors: dict[str, SlurmError] = {}
        for slurm_job_id in slurm_job_ids:
            try:
                jobs = self._touch("signal", slurm_job_id, JobState.RUNNING)
            except SlurmUnavailableError:
                raise
            except SlurmError as error:
                errors[slurm_job_id] = error
                continue
            for job in jobs:
                self._deliver(job, signal)
        return errors

    def requeue_hold(self, slurm_job_id: str) -> None:
        """See SlurmClient."""
        for job in self._touch("requeue_hold", slurm_job_id):
            if job.shown.state in {JobState.CANCELLED, JobState.COMPLETING}:
                raise WrongJobStateError(f"job {slurm_job_id} is {job.shown.slurm_state}: it is not requeued")
            self._requeue(job, Hold.USER)

    def suspend(self, slurm_job_id: str) -> None:
        """See SlurmClient."""
        for job in self._touch("suspend", slurm_job_id, JobState.RUNNING):
            self._pause(job)
            self._show(job, state=JobState.SUSPENDED)

    def resume(self, slurm_job_id: str) -> None:
        """See SlurmClient."""
        for job in self._touch("resume", slurm_job_id, JobState.SUSPENDED):
            job.sticky_hold = False
            self._show(job, state=JobState.RUNNING)
            self._compute(job)

    def close(self) -> None:
        """See SlurmClient."""

    # Actions of users, nodes and time

    def add(
        self,
        *options: str,
        name: str = "job",
        user: str = "user",
        account: str = "",
        comment: str = "",
        trainer: Trainer | None = None,
        script: str = "#!/bin/bash\n",
    ) -> str:
        """Submit a job as a user with sbatch's options, and return its Slurm job id (of an array: the array's id)."""
        found = parse_options([*options, *([f"--comment={comment}"] if comment else [])])
        if account:
            found["account"] = account
        return self._add(found, name=name, user=user, trainer=trainer or Trainer(), script=script)

    def job(self, slurm_job_id: str) -> SlurmJob:
        """Return one job as Slurm would show it now."""
        return self._one(slurm_job_id).shown

    def trainer(self, slurm_job_id: str) -> Trainer:
        """Return the behaviour of the job's script."""
        return self._one(slurm_job_id).trainer

    def tick(self, seconds: float = 1.0) -> None:
        """Advance the clock: due events happen in order, and jobs start as soon as they can."""
        until = self.now + seconds
        while True:
            self._start_what_can()
            instants = [at for at, _, _ in self._events[:1]]
            instants += [
                job.shown.eligible
                for job in self._jobs.values()
                if self._is_queued(job) and job.shown.eligible is not None and job.shown.eligible > self.now
            ]
            due = min(instants, default=until)
            if due > until:
                break
            self.now = max(due, self.now)
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            if due == until and not any(at <= until for at, _, _ in self._events):
                self._start_what_can()
                break
        self.now = until

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Schedule a call in ``seconds`` of the clock."""
        heapq.heappush(self._events, (self.now + seconds, next(self._order), do))

    def exit(self, slurm_job_id: str, code: int, after: float = 0.0) -> None:
        """Make the script of the present run exit after some seconds, unless the run has ended by then."""
        job = self._one(slurm_job_id)
        run = job.run

        def end() -> None:
            if job.run == run and job.shown.state in _ACTIVE:
                self._exited(job, code)

        if after > 0:
            self.after(after, end)
        else:
            end()

    def owner_release(self, slurm_job_id: str) -> None:
        """``scontrol release`` by the owner; an admin's hold stays, as in Slurm."""
        for job in self._find(slurm_job_id):
            if job.shown.hold is not Hold.ADMIN:
                self._release(job)

    def owner_requeue(self, slurm_job_id: str) -> None:
        """``scontrol requeue`` by the owner: the job comes back without a hold, unless an admin held it meanwhile."""
        for job in self._find(slurm_job_id):
            self._requeue(job, Hold.NONE)

    def cancel(self, slurm_job_id: str) -> None:
        """See SlurmClient; also ``scancel`` by the owner or an administrator."""
        for job in self._touch("cancel", slurm_job_id):
            if job.shown.state is JobState.PENDING:
                self._show(job, state=JobState.CANCELLED, hold=Hold.NONE, ended=self.now)
            elif job.shown.state in _ACTIVE:
                self._terminate(job, JobState.CANCELLED, Hold.NONE)

    def owner_edit(self, slurm_job_id: str, *, comment: str) -> None:
        """``scontrol update Comment=`` by the owner."""
        for job in self._find(slurm_job_id):
            self._show(job, comment=comment)

    def node_down(self, name: str) -> None:
        """Lose a node: its jobs are requeued without a hold."""
        self._nodes.down.add(self._nodes.by_name[name].name)
        for job in self._jobs.values():
            if job.shown.state in _ACTIVE and name in job.shown.allocated:
                self._back_to_pending(job, Hold.NONE, "PENDING")

    def node_drain(self, name: str, reason: str = "") -> None:
        """Drain a node: it gets no new jobs."""
        self._nodes.drained.add(self._nodes.by_name[name].name)
        self._nodes.reasons[name] = reason

    def leak_gpus(self, name: str) -> None:
        """Count all GPUs of a node as allocated until the controller counts again."""
        self._nodes.leaked |= {(name, gpu) for gpu in range(self._nodes.by_name[name].gpus)}

    def reconfigure(self) -> None:
        """Count the GPUs of the jobs again."""
        self._nodes.leaked.clear()

    def node_up(self, name: str) -> None:
        """Return a node to service."""
        self._nodes.down.discard(name)
        self._nodes.drained.discard(name)

    def reserve(self, reservation: Reservation) -> None:
        """Make a reservation: its nodes are for its jobs only from its start to its end."""
        self._nodes.reservations[reservation.name] = reservation

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Make the controller not answer in the block; jobs continue."""
        self._reachable = False
        try:
            yield
        finally:
            self._reachable = True

    def crash(self, lost_seconds: float = 5.0) -> None:
        """Kill and restart the controller: jobs younger than ``lost_seconds`` are lost, and their ids reused."""
        for slurm_job_id, job in list(self._jobs.items()):
            if self.now - job.shown.submitted < lost_seconds and not job.shown.restarts:
                del self._jobs[slurm_job_id]
        self._next_id = max((job.shown.job_id for job in self._jobs.values()), default=0) + 1
        self._boot_time = self._back_at = self.now
        self._gpus_counted_from = self._boot_time + GRES_SECONDS

    def restart(self, down_seconds: float = 0.0) -> None:
        """Restart the controller: nothing is lost, and commands wait for the controller, as Slurm's own do.

        Until the nodes have registered, it starts jobs with GPUs in which no step can be created.
        """
        self._boot_time = self._back_at = self.now + down_seconds
        self._gpus_counted_from = self._boot_time + GRES_SECONDS

    # Inside

    def _await_controller(self) -> None:
        """Let the time of a command pass that tries to reach the controller once a second."""
        while self.now < self._back_at:
            self.tick(1.0)

    def _call(self, method: str, slurm_job_id: str = "") -> None:
        self.calls.append((method, slurm_job_id))
        self._await_controller()
        if not self._reachable:
            raise SlurmUnavailableError("Unable to contact slurm controller (connect failure)")

    def _touch(self, method: str, slurm_job_id: str, *states: JobState, ended: bool = True) -> list[FakeJob]:
        """Return the jobs of a call (all tasks of an array); they must be in one of the states (none: in any)."""
        self._call(method, _checked(slurm_job_id))
        jobs = self._find(slurm_job_id)
        if method != "batch_script" and slurm_job_id in self._jobs:
            self._split_off(jobs[0])
        if not jobs:
            raise NoSuchJobError(f"Invalid job id specified for job {slurm_job_id}")
        for job in jobs:
            state = job.shown.state
            if (states and state not in states) or (not ended and state in _ENDED):
                raise WrongJobStateError(f"{method}: job {slurm_job_id} is {job.shown.slurm_state}")
        return jobs

    def _split_off(self, job: FakeJob) -> None:
        """Give an array task a record of its own; the last task of the array's record stays with it."""
        array, others = job.shown.array_job_id, [other for other in self._jobs.values() if other is not job]
        if array == job.shown.job_id and any(other.shown.job_id == array for other in others):
            taken = {other.shown.job_id for other in others}
            self._show(job, job_id=min(set(range(array + 1, array + 2 + len(taken))) - taken))

    def _find(self, slurm_job_id: str) -> list[FakeJob]:
        if slurm_job_id in self._jobs:
            return [self._jobs[slurm_job_id]]
        return [job for job in self._jobs.values() if str(job.shown.array_job_id) == slurm_job_id]

    def _one(self, slurm_job_id: str) -> FakeJob:
        if slurm_job_id not in self._jobs:
            raise NoSuchJobError(f"Invalid job id specified for job {slurm_job_id}")
        return self._jobs[slurm_job_id]

    def _show(self, job: FakeJob, **changes: object) -> None:
        state = changes.get("state")
        if isinstance(state, JobState) and "slurm_state" not in changes:
            changes["slurm_state"] = state.value
        job.shown = replace(job.shown, **changes)  # type: ignore[arg-type]

    def _add(self, options: dict[str, str], *, name: str, user: str, trainer: Trainer, script: str) -> str:
        job_id = self._next_id
        tasks = field_parsers.array_tasks(options["array"]) if "array" in options else []
        job = pending_job(job_id, options, name=name, user=user, now=self.now)
        self._nodes.check_possible(job)
        self._next_id += 1 + len(tasks)
        for task in tasks:
            slurm_job_id = f"{job_id}_{task}"
            shown = replace(job, slurm_job_id=slurm_job_id, array_job_id=job_id, array_task_id=task)
            self._jobs[slurm_job_id] = FakeJob(shown, replace(trainer, signals=[]), script=script)
        if not tasks:
            self._jobs[job.slurm_job_id] = FakeJob(job, trainer, script=script)
        return str(job_id)

    # Starting

    def _is_queued(self, job: FakeJob) -> bool:
        shown = job.shown
        return shown.state is JobState.PENDING and shown.hold is Hold.NONE and not shown.dependency

    def _follow_dependencies(self) -> None:
        """Resolve the dependencies of jobs that are not held; only afterany and afterok are known."""
        for job in self._jobs.values():
            kind, _, other = job.shown.dependency.partition(":")
            done = self._jobs.get(other)
            if done is None or job.shown.hold is not Hold.NONE or done.shown.state not in _ENDED:
                continue
            if kind == "afterany" or (kind == "afterok" and done.shown.state is JobState.COMPLETED):
                self._show(job, dependency="")

    def _start_what_can(self) -> None:
        if self.now < self._back_at:
            return
        self._follow_dependencies()
        for job in sorted(self._jobs.values(), key=lambda job: job.shown.job_id):
            if self._is_queued(job) and (job.shown.eligible is None or job.shown.eligible <= self.now):
                nodes = self._nodes.choose(job.shown, self.now)
                if nodes is None:
                    self._show(job, reason="Resources")
                else:
                    self._start(job, nodes)

    def _start(self, job: FakeJob, nodes: tuple[str, ...]) -> None:
        self._split_off(job)
        first = self._nodes.by_name[nodes[0]]
        gpus, cpus, memory = self._nodes.needs(job.shown, len(nodes))
        if job.shown.exclusive:
            gpus, cpus = first.gpus, first.cpus
        job.run += 1
        job.indices = {name: self._nodes.choose_gpus(name, job.shown, gpus) or () for name in nodes if gpus}
        shards = job.shown.shards_per_node
        self._nodes.forgotten -= {(name, gpu) for name, which in job.indices.items() for gpu in which}
        self._show(
            job,
            state=JobState.RUNNING,
            gpu_indices=job.indices,
            shards=dict.fromkeys(nodes, shards) if shards else {},
            reason="None",
            started=self.now,
            ended=None,
            exit_code=None,
            allocated=dict.fromkeys(nodes, gpus),
            allocated_gpu_type=first.gpu_type if gpus and not shards else None,
            allocated_cpus=dict.fromkeys(nodes, cpus),
            allocated_memory=dict.fromkeys(nodes, memory),
        )
        if gpus and self.now < self._gpus_counted_from:
            if self.leaks_gpus:
                self._nodes.leaked |= {(name, gpu) for name, which in job.indices.items() for gpu in which}
            job.trainer.not_launched(self, job.shown)
            return
        self._compute(job)
        if job.shown.time_limit is not None:
            run = job.run

            def time_out() -> None:
                if job.run == run and job.shown.state is JobState.RUNNING:
                    self._terminate(job, JobState.TIMEOUT, Hold.NONE)

            self.after(job.shown.time_limit, time_out)
        job.trainer.started(self, job.shown)

    def _compute(self, job: FakeJob) -> None:
        """Make the trainer work from now on, and exit when its work is done."""
        job.computing_since = self.now
        if job.trainer.seconds is None:
            return
        since, run = self.now, job.run

        def done() -> None:
            if job.run == run and job.computing_since == since and job.shown.state is JobState.RUNNING:
                self._exited(job, job.trainer.exit_code)

        self.after(max(job.trainer.seconds - job.trainer.done, 0.0), done)

    def _pause(self, job: FakeJob) -> None:
        if job.computing_since is not None and job.trainer.keeps_work:
            job.trainer.done += self.now - job.computing_since
        job.computing_since = None

    # Ending

    def _deliver(self, job: FakeJob, signal: str) -> None:
        job.trainer.signals.append((self.now, signal))
        if signal == _KILL:
            self._exited(job, 137)
        else:
            job.trainer.signalled(self, job.shown, signal)

    def _terminate(self, job: FakeJob, state: JobState, hold: Hold) -> None:
        """Send SIGTERM now and SIGKILL after KillWait; the job is COMPLETING until its script exits."""
        job.after = (state, hold)
        suspended = job.shown.state is JobState.SUSPENDED
        self._pause(job)
        self._show(job, state=JobState.COMPLETING, allocated_gpu_type=job.shown.gpu_type, gpu_indices={})
        run = job.run

        def kill() -> None:
            if job.run == run and job.shown.state is JobState.COMPLETING:
                self._exited(job, 137)

        if suspended:
            self._exited(job, 137)  # a stopped process gets no SIGTERM that it could act on
        else:
            self.after(self._kill_wait, kill)
            self._deliver(job, _TERM)

    def _exited(self, job: FakeJob, code: int) -> None:
        """End the run: its script has exited with a code."""
        self._pause(job)
        if job.after is not None:
            state, hold = job.after
            job.after = None
            if state is JobState.PENDING:
                self._back_to_pending(job, hold, "PENDING")
                return
        elif code in self._settings.requeue_exit_hold and job.shown.requeue:
            self._back_to_pending(job, Hold.USER, "SPECIAL_EXIT")
            self._show(job, exit_code=code)
            return
        else:
            state = JobState.FAILED if code else JobState.COMPLETED
        self._vacate(job)
        self._show(job, state=state, ended=self.now, exit_code=code)

    def _vacate(self, job: FakeJob) -> None:
        job.run += 1
        if job.shown.shards:
            self._nodes.forgotten |= {(name, gpu) for name, which in job.indices.items() for gpu in which}
        job.indices = {}
        nothing: dict[str, object] = {"allocated": {}, "allocated_cpus": {}, "allocated_memory": {}}
        self._show(job, **nothing, allocated_gpu_type=None, gpu_indices={}, shards={})

    def _release(self, job: FakeJob) -> None:
        job.sticky_hold = False
        if job.shown.state is JobState.PENDING:
            self._show(job, state=JobState.PENDING, hold=Hold.NONE, reason="None")

    def _requeue(self, job: FakeJob, hold: Hold) -> None:
        if job.shown.state is JobState.PENDING:
            raise WrongJobStateError(f"Job is pending execution for job {job.shown.slurm_job_id}")
        if not job.shown.requeue:
            raise WrongJobStateError(f"Requested operation is presently disabled for job {job.shown.slurm_job_id}")
        if job.shown.state in _ENDED:
            self._back_to_pending(job, hold, "PENDING")
        elif job.shown.state is JobState.COMPLETING:
            job.after = (JobState.PENDING, hold)
        else:
            self._terminate(job, JobState.PENDING, hold)

    def _back_to_pending(self, job: FakeJob, hold: Hold, slurm_state: str) -> None:
        """Requeue a job: a new submit time, and no start before the begin delay is over, unless an update clears it."""
        self._vacate(job)
        job.after, job.computing_since = None, None
        if hold is Hold.NONE and job.sticky_hold:
            hold = Hold.ADMIN
        job.sticky_hold = False
        self._show(
            job,
            state=JobState.PENDING,
            slurm_state=slurm_state,
            hold=hold,
            reason={Hold.USER: "JobHeldUser", Hold.ADMIN: "JobHeldAdmin", Hold.NONE: "BeginTime"}[hold],
            submitted=self.now,
            eligible=self.now + BEGIN_DELAY,
            started=None,
            ended=None,
            exit_code=None,
            restarts=job.shown.restarts + 1,
        )


def _checked(slurm_job_id: str) -> str:
    if not field_parsers.is_slurm_job_id(slurm_job_id):
        raise InvalidArgumentError(f"not a job id: {slurm_job_id!a}")
    return slurm_job_id
