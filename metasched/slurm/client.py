"""The contract of a Slurm client, and the records that its calls take and return."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from metasched.core.model import Hold
from metasched.slurm.associations import Associations
from metasched.slurm.errors import SlurmError

_NOTHING: Mapping[str, Any] = {}  # one object for thousands of jobs
OUT_OF_REACH = 4_102_444_800.0
"""A begin time (unix seconds, the year 2100) at which no job starts: only an update lets such a job start."""


class JobState(enum.Enum):
    """A job's state: Slurm's base states, with those merged that metasched treats alike."""

    __hash__ = object.__hash__  # as that of model.Status

    PENDING = "PENDING"  # includes SPECIAL_EXIT and REQUEUED
    RUNNING = "RUNNING"  # includes CONFIGURING and RESIZING
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"  # includes BOOT_FAIL, DEADLINE, OUT_OF_MEMORY, NODE_FAIL (not requeued)
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job (or one array task) as Slurm reports it.

    Attributes:
        slurm_job_id: ``123``, or ``123_4`` for an array task, also while the task still shares its master's record.
        job_id: Slurm's own id of the record (an array's master id for tasks that are not split off yet).
        array_job_id: the id of the job's array, else None.
        array_task_id: the task's index in the array, else None.
        name, user, account, partition, qos, comment, admin_comment: as Slurm has them; "" where empty. Hostile text.
        state: see JobState.
        slurm_state: the full state text, for people.
        reason: Slurm's reason for pending.
        hold: who can release the job.
        submitted: submit time; rewritten by each requeue.
        eligible: earliest start; None if unset.
        started: start of the present (or last) run; None while pending.
        ended: end of the last run; None unless finished.
        time_limit: seconds; None for unlimited.
        nodes_requested: fewest nodes that the request allows.
        tasks, cpus: totals, requested (pending) or allocated.
        gpus_per_node: GPUs per node in the request (``--gres``, ``--gpus-per-node``), else None.
        gpus_total: GPUs in the request (``--gpus``), else None.
        gpus_per_task: GPUs per task in the request, else None.
        gpu_type: the one type named in the request; None where it names none, or several.
        gpu_types: all types named in the request, sorted.
        memory_per_node, memory_per_cpu: bytes in the request, else None.
        features: required features.
        required_nodes: node names of ReqNodeList.
        excluded_nodes: node names of ExcNodeList.
        exclusive: whether the request is for whole nodes (``--exclusive``).
        allocated: GPUs held on each node ({} while pending); a CPU-only job has its nodes with 0. While COMPLETING it
            is the request's number, because Slurm no longer reports the allocation.
        allocated_gpu_type: type of the GPUs held, "" for untyped ones; None without GPUs, with GPUs of several
            types, or where Slurm does not report the type.
        allocated_cpus, allocated_memory: held on each node, CPUs and bytes.
        restarts: Slurm's restart count.
        requeue: whether Slurm may requeue the job.
        dependency: unmet dependencies in Slurm's words, "" if none.
        exit_code: exit code of the last run; None while there is none.
        nodes_max: most nodes in the request, None for no limit.
        gpus_per_socket: GPUs per socket in the request, else None.
        cpus_per_gpu: CPUs for each GPU in the request, else None.
        memory_per_gpu: bytes for each GPU in the request, else None.
        het: whether the job is a component of a heterogeneous job.
        batch: whether the job has a batch script; a job without one (salloc, srun) cannot be requeued.
        shards_per_node: shards (parts of a GPU) per node in the request, else None.
        gpu_indices: indices of the GPUs held on each node, whole or in part; nodes without a report are missing.
        shards: shards held on each node; empty for a job that holds whole GPUs. ``allocated`` then counts the GPUs
            that the shards are parts of.
        reservation: the reservation in the request (``a,b``: any of them), or the one that Slurm chose; "" for none.
    """

    slurm_job_id: str
    job_id: int
    array_job_id: int | None
    array_task_id: int | None
    name: str
    user: str
    account: str
    partition: str
    qos: str
    comment: str
    admin_comment: str
    state: JobState
    slurm_state: str
    reason: str
    hold: Hold
    submitted: float
    eligible: float | None
    started: float | None
    ended: float | None
    time_limit: float | None
    nodes_requested: int
    tasks: int
    cpus: int
    gpus_per_node: int | None
    gpus_total: int | None
    gpus_per_task: int | None
    gpu_type: str | None
    memory_per_node: int | None
    memory_per_cpu: int | None
    features: frozenset[str]
    required_nodes: tuple[str, ...]
    exclusive: bool
    restarts: int
    requeue: bool
    dependency: str
    exit_code: int | None
    nodes_max: int | None = None
    gpus_per_socket: int | None = None
    cpus_per_gpu: int | None = None
    memory_per_gpu: int | None = None
    het: bool = False
    batch: bool = True
    excluded_nodes: tuple[str, ...] = ()
    shards_per_node: int | None = None
    allocated: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    allocated_gpu_type: str | None = None
    allocated_cpus: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    allocated_memory: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    gpu_indices: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: _NOTHING)
    shards: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    reservation: str = ""
    gpu_types: tuple[str, ...] = ()

    @property
    def submission_id(self) -> int:
        """The id that ``sbatch`` printed: that of the array, or of the job."""
        return self.job_id if self.array_job_id is None else self.array_job_id


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node as Slurm reports it.

    Attributes:
        name: node name.
        gpus: configured GPUs by type ("" for untyped).
        cpus, memory: configured totals; memory in bytes.
        accepts: whether the node is up, responding, and neither drained nor failing.
        features, partitions: names.
        shards_per_gpu: shards of each GPU of the node; 0 for whole GPUs only.
        reserved: whether the node is in a reservation or in maintenance now; Slurm reports it some seconds late.
        reason: why Slurm or an administrator took the node out of service; "" for no reason. Free text.
        gpus_allocated: GPUs that Slurm counts as allocated; None where it does not tell.
        reason_by: name of the Unix user who gave the reason; "" where Slurm does not tell.
        reason_at: when the reason was given, unix seconds; None where Slurm does not tell.
    """

    name: str
    gpus: Mapping[str, int]
    cpus: int
    memory: int
    accepts: bool
    features: frozenset[str]
    partitions: frozenset[str]
    shards_per_gpu: int = 0
    reserved: bool = False
    reason: str = ""
    gpus_allocated: int | None = None
    reason_by: str = ""
    reason_at: float | None = None


@dataclass(frozen=True, slots=True)
class Reservation:
    """One reservation of nodes as Slurm reports it; instants are unix seconds.

    Attributes:
        name: the name by which jobs ask for the reservation.
        start, end: the reserved period.
        nodes: names; empty for a reservation of something else (licences), or of nodes that are not chosen yet.
        users: users whose jobs may use the reservation; empty where users do not decide that.
        barred_users: users whose jobs may not use it, where all others may.
        flags: Slurm's words, such as MAINT, OVERLAP and FLEX.
    """

    name: str
    start: float
    end: float
    nodes: frozenset[str]
    users: frozenset[str] = frozenset()
    barred_users: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Geometry:
    """The size and the nodes that a pending job is given before its release.

    Attributes:
        nodes: names of exactly the nodes that the job is to run on.
        gpus_per_node: 0 for a CPU-only job.
        tasks: total over all nodes, a multiple of their number.
        cpus: total over all nodes, a multiple of ``tasks``.
        memory_per_node: bytes; None leaves the request as it is.
        delay: seconds from now to the earliest start. A requeued job fails on a node that it left within the same
            second, so the delay is 1 for a restart on a node of the last run, and 0 else.
        gpu_type: the type that the job's own request names; None where the request names none. (Slurm cannot make an
            untyped request typed; the nodes decide the type.)
        shards_per_node: number of shards instead of ``gpus_per_node`` whole GPUs, for a job whose request is for
            shards; Slurm allocates them from one GPU. None for whole GPUs. (Slurm can turn neither request into the
            other.)
    """

    nodes: tuple[str, ...]
    gpus_per_node: int
    tasks: int
    cpus: int
    memory_per_node: int | None = None
    delay: int = 0
    gpu_type: str | None = None
    shards_per_node: int | None = None


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """Slurm's settings (slurm.conf) that metasched depends on.

    Attributes:
        version: (22, 5, 8).
        cluster: ClusterName.
        requeue_exit_hold: exit codes after which Slurm itself requeues and holds a job (RequeueExitHold).
        job_submit_plugins: names of the plugins (JobSubmitPlugins).
        as_of: the controller's clock at its answer, unix seconds; None where the answer has none.
        values: all settings as Slurm prints them, by Slurm's names.
    """

    version: tuple[int, ...]
    cluster: str
    requeue_exit_hold: frozenset[int]
    job_submit_plugins: tuple[str, ...]
    as_of: float | None = None
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def hides_jobs(self) -> bool:
        """Whether users see their own jobs alone (PrivateData has ``jobs``)."""
        words = {word.strip().lower() for word in self.values.get("PrivateData", "").split(",")}
        return not words.isdisjoint({"jobs", "all"})


class SlurmClient(Protocol):
    """Slurm, as far as metasched uses it.

    Every call has a timeout. A call that fails raises a ``SlurmError`` (``metasched.slurm.errors``):
    ``SlurmTimeoutError`` and ``SlurmUnavailableError`` when the controller does not answer, ``NoSuchJobError``,
    ``WrongJobStateError`` (for example an update of a running job), ``SlurmPermissionError``,
    ``MalformedOutputError`` (names the record that could not be read), ``SlurmCommandError`` for anything else.
    Reads are whole and repeatable. Writes are never retried by a client: the caller verifies them at its next read.
    """

    def settings(self) -> SlurmSettings:
        """Read Slurm's settings from the controller."""

    def boot_time(self) -> float | None:
        """Read when the present slurmctld began, in unix seconds of its clock; None where it does not tell.

        Slurm's commands wait for a controller that is away for some seconds and then answer as usual, so that only
        another boot time shows the restart.
        """

    def jobs(self) -> Sequence[SlurmJob]:
        """Read the jobs that Slurm knows, finished ones of the last minutes (MinJobAge) included.

        Every job is in it, except for pending ones of which thousands have come since the read before: some reads may
        have the first of them only.

        Array tasks that are not split off yet are listed one by one. A record that cannot be read is left out, and
        named in a warning: one hostile job must not hide the others.
        """

    def nodes(self) -> Sequence[SlurmNode]:
        """Read all nodes in one bulk read; a record that cannot be read is left out, and named in a warning."""

    def jobs_and_nodes(self) -> tuple[Sequence[SlurmJob], Sequence[SlurmNode]]:
        """Read what ``jobs`` and ``nodes`` read, at the same time where that is possible: a poll waits for both."""

    def reservations(self) -> Sequence[Reservation]:
        """Read all reservations, future ones included; up to a minute old while the same nodes are reserved."""

    def racks(self) -> Mapping[str, str]:
        """Read Slurm's network topology: the name of each node's leaf switch or block, by node name.

        Up to five minutes old. Nodes in no switch and no block are missing; empty where Slurm has no topology, or none
        that can be read.
        """

    def associations(self) -> Associations | None:
        """Read fair-shares and limits from slurmctld; None without accounting, or hidden from this user."""

    def batch_script(self, slurm_job_id: str) -> str:
        """Read the batch script, as submitted, of a job that has not ended; the tasks of an array share one."""

    def hold(self, slurm_job_id: str) -> None:
        """Put an administrator's hold on a pending job, in place of any other hold: its owner cannot release the job.

        On a running or suspended job the hold changes nothing for the run, and takes effect at a requeue by others
        (the owner, a lost node). After ``requeue_hold`` or an exit code of ``requeue_exit_hold`` the job has a
        user's hold instead, and must be held again.
        """

    def release(self, slurm_job_id: str) -> None:
        """Let Slurm start a held job."""

    def await_dependency(self, slurm_job_id: str) -> None:
        """Let Slurm resolve the dependency of a pending job, as it does for no held job, without starting the job.

        A begin time of ``OUT_OF_REACH`` replaces the hold. Once ``dependency`` is empty, the job can be held again; an
        update resets the begin time.
        """

    def update(self, slurm_job_id: str, geometry: Geometry) -> None:
        """Give a pending job another size and other nodes; sent whole, because Slurm applies a failed update in part.

        Works for every form of request that ``job_requirements.requirements`` accepts. Afterwards the request reads as
        ``gpus_per_node``, even if it had another form.
        """

    def stamp(self, slurm_job_id: str, admin_comment: str) -> None:
        """Write the job's AdminComment, which its owner cannot change."""

    def adopt(self, slurm_job_id: str, admin_comment: str) -> None:
        """Stamp a pending job, put an administrator's hold on it and allow Slurm to requeue it, in one command."""

    def set_requeue(self, slurm_job_id: str) -> None:
        """Allow Slurm to requeue the job (``--requeue``)."""

    def signal(self, slurm_job_ids: Sequence[str], signal: str) -> Mapping[str, SlurmError]:
        """Send a signal (``SIGUSR2``) to every task of every step of some running jobs, not to their batch shells.

        Returns:
            Why a job was not sent the signal, by Slurm job id.

        Raises:
            InvalidArgumentError: there is no such signal.
            SlurmUnavailableError: Slurm does not answer; some jobs may have been sent the signal.
        """

    def requeue_hold(self, slurm_job_id: str) -> None:
        """End the run (SIGTERM, SIGKILL after KillWait) and requeue the job with a user's hold.

        A job that has failed or completed is requeued as well. A cancelled job is refused (WrongJobStateError), and so
        is a COMPLETING one, because it may have been cancelled.
        """

    def cancel(self, slurm_job_id: str) -> None:
        """End a job as CANCELLED, pending or not (SIGTERM, SIGKILL after KillWait).

        A job that has ended stays as it is. Slurm never requeues a cancelled job. Of an array, other tasks continue.
        """

    def suspend(self, slurm_job_id: str) -> None:
        """Suspend a running job (SIGSTOP); its CPUs are freed, its GPUs are not."""

    def resume(self, slurm_job_id: str) -> None:
        """Resume a suspended job. An administrator's hold that waited for a requeue is lost, and must be repeated."""

    def close(self) -> None:
        """End the client's processes and close its files."""
