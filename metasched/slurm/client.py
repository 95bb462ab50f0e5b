"""The contract of a Slurm client, and the records that it speaks in."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from metasched.core.model import Hold
from metasched.slurm.associations import Associations

OUT_OF_REACH = 4_102_444_800.0
"""The begin time (unix seconds, the year 2100) of a job that waits for nothing but its dependency, or for us."""


class JobState(enum.Enum):
    """Slurm's base states, as far as they differ for us."""

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
    """One job (or one array task) as Slurm tells it.

    Attributes:
        slurm_job_id: ``123``, or ``123_4`` for an array task, also while the task still shares its master's record.
        job_id: Slurm's own id of the record (an array's master id for tasks that are not split off yet).
        array_job_id: the array it belongs to, else None.
        array_task_id: its index there, else None.
        name, user, account, partition, qos, comment, admin_comment: as Slurm has them; "" where empty. Hostile text.
        state: see JobState.
        slurm_state: the full state text, for people.
        reason: Slurm's reason for pending.
        hold: who can release it.
        submitted: submit time; rewritten by each requeue.
        eligible: earliest start; None if unset.
        started: start of the present (or last) run; None if it is pending or never ran.
        ended: end of the last run; None unless finished.
        time_limit: seconds; None for unlimited.
        nodes_requested: fewest nodes.
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
        exclusive: whether it asked for whole nodes.
        allocated: GPUs held on each node ({} while pending); a CPU-only job has its nodes with 0. While COMPLETING it
            is what the request says, because Slurm no longer tells.
        allocated_gpu_type: type of the GPUs held, "" for untyped ones; None without any, or where they are of several
            types (or not told).
        allocated_cpus, allocated_memory: held on each node, CPUs and bytes.
        restarts: Slurm's restart count.
        requeue: whether Slurm may requeue it.
        dependency: unmet dependencies in Slurm's words, "" if none.
        priority: Slurm's; 0 is a hold.
        exit_code: of the last run, None while it has none.
        nodes_max: most nodes in the request, None for no limit.
        gpus_per_socket: GPUs per socket in the request, else None.
        cpus_per_gpu: CPUs for each GPU in the request, else None.
        memory_per_gpu: bytes for each GPU in the request, else None.
        het: whether it is a component of a heterogeneous job.
        batch: whether it has a batch script; one without (salloc, srun) cannot be requeued.
        shards_per_node: shards (parts of a GPU) per node in the request, else None.
        gpu_indices: which GPUs of each node it holds, whole or in part; nodes of which Slurm does not tell are missing.
        shards: shards held on each node; empty for a job that holds whole GPUs. ``allocated`` counts the GPUs that
            they are parts of.
        reservation: the reservation it asks for (``a,b``: any of them), or that Slurm has put it into; "" for none.
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
    allocated: Mapping[str, int]
    allocated_gpu_type: str | None
    allocated_cpus: Mapping[str, int]
    allocated_memory: Mapping[str, int]
    restarts: int
    requeue: bool
    dependency: str
    priority: int
    exit_code: int | None
    nodes_max: int | None = None
    gpus_per_socket: int | None = None
    cpus_per_gpu: int | None = None
    memory_per_gpu: int | None = None
    het: bool = False
    batch: bool = True
    excluded_nodes: tuple[str, ...] = ()
    shards_per_node: int | None = None
    gpu_indices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)
    reservation: str = ""
    gpu_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node as Slurm tells it.

    Attributes:
        name: node name.
        gpus: configured GPUs by type ("" for untyped).
        cpus, memory: configured totals; memory in bytes.
        cpus_allocated, memory_allocated, gpus_allocated: held by all jobs, ours included.
        state: Slurm's words ("idle", "mixed+drain", ...).
        accepts: up, responding, not drained or failing.
        features, partitions: names.
        shards_per_gpu: into how many parts each of its GPUs can be given away; 0 for whole GPUs only.
        reserved: in a reservation or in maintenance now; Slurm says so some seconds late.
    """

    name: str
    gpus: Mapping[str, int]
    cpus: int
    memory: int
    cpus_allocated: int
    memory_allocated: int
    gpus_allocated: int
    state: str
    accepts: bool
    features: frozenset[str]
    partitions: frozenset[str]
    shards_per_gpu: int = 0
    reserved: bool = False


@dataclass(frozen=True, slots=True)
class Reservation:
    """One reservation of nodes as Slurm tells it; instants are unix seconds.

    Attributes:
        name: as jobs ask for it.
        start, end: when it holds.
        nodes: names; empty for a reservation of something else (licences), or of nodes that are not chosen yet.
        users: who may use it; empty where users do not decide that.
        barred_users: who may not, where all others may.
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
    """The size and place that a pending job is given before it is released.

    Attributes:
        nodes: exactly these.
        gpus_per_node: 0 for a CPU-only job.
        tasks: total over all nodes, a multiple of their number.
        cpus: total over all nodes, a multiple of ``tasks``.
        memory_per_node: bytes; None leaves the request as it is.
        delay: seconds from now to the earliest start. A requeued job that comes back to a node within the second in
            which it left it fails there, so this is 1 for such a restart and 0 else.
        gpu_type: the type that the job's own request names, None where it names none. (Slurm cannot make an untyped
            request typed; the nodes say the type.)
        shards_per_node: so many shards instead of ``gpus_per_node`` whole GPUs, for a job whose request is of shards;
            Slurm gives them from one GPU. None for whole GPUs. (Slurm can turn neither request into the other.)
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
    """What of slurm.conf matters to us.

    Attributes:
        version: (22, 5, 8).
        cluster: ClusterName.
        requeue_exit_hold: exit codes after which Slurm requeues and holds by itself.
        kill_wait: seconds between SIGTERM and SIGKILL.
        job_submit_plugins: names.
        as_of: the controller's clock when it answered; None if not told.
        values: all of it, in Slurm's words, by Slurm's names.
    """

    version: tuple[int, ...]
    cluster: str
    requeue_exit_hold: frozenset[int]
    kill_wait: float
    job_submit_plugins: tuple[str, ...]
    as_of: float | None = None
    values: Mapping[str, str] = field(default_factory=dict)


class SlurmClient(Protocol):
    """Everything that metasched asks of Slurm.

    Every call has a timeout, says what happened, or raises a ``SlurmError`` (``metasched.slurm.errors``):
    ``SlurmTimeoutError`` and ``SlurmUnavailableError`` when the controller does not answer, ``NoSuchJobError``,
    ``WrongJobStateError`` (for example an update of a running job), ``SlurmPermissionError``,
    ``MalformedOutputError`` (names the record that could not be read), ``SlurmCommandError`` for anything else.
    Writes are verified by whoever reads next; none is ever retried here.
    """

    def settings(self) -> SlurmSettings:
        """Read the settings that matter."""

    def jobs(self) -> Sequence[SlurmJob]:
        """All jobs that Slurm knows, finished ones of the last minutes included, in one bulk read.

        Array tasks that are not split off yet are listed one by one. A record that cannot be read is left out, and
        named in a warning: one hostile job must not blind the daemon.
        """

    def nodes(self) -> Sequence[SlurmNode]:
        """All nodes, in one bulk read."""

    def reservations(self) -> Sequence[Reservation]:
        """All reservations, those to come included; up to a minute old where the nodes' states tell of no change."""

    def racks(self) -> Mapping[str, str]:
        """Read Slurm's network topology: the name of each node's leaf switch or block, by node name.

        Up to five minutes old. Nodes in no switch and no block are missing; empty where Slurm has no topology, or none
        that can be read.
        """

    def associations(self) -> Associations | None:
        """Shares and limits as slurmctld has them; None where accounting is off, or we may not see all of it."""

    def batch_script(self, slurm_job_id: str) -> str:
        """The batch script of a job that has not ended (of an array: of all its tasks), as it was submitted."""

    def hold(self, slurm_job_id: str) -> None:
        """Admin-hold a pending job: its owner cannot release it (whatever hold there was before).

        On a running or suspended job it changes nothing for the run, and holds the job when somebody else requeues it
        (its owner, a lost node): it comes back with the admin's hold. After a requeue of ours (``requeue_hold``, or an
        exit code of ``requeue_exit_hold``) it comes back with a user's hold, and must be held again.
        """

    def release(self, slurm_job_id: str) -> None:
        """Let Slurm start a held job."""

    def await_dependency(self, slurm_job_id: str) -> None:
        """Let Slurm follow the dependency of a pending job, which it does for no held one, without starting the job.

        Its hold is replaced by a begin time of ``OUT_OF_REACH``. Once ``dependency`` is empty, it can be held again; an
        update brings the begin time back.
        """

    def update(self, slurm_job_id: str, geometry: Geometry) -> None:
        """Give a pending job another size and place; sent whole, because Slurm applies a failed update in part.

        Works for every form of request for which ``job_requirements.requirements`` gives an answer. Afterwards
        the request reads as ``gpus_per_node``, whatever its form was.
        """

    def stamp(self, slurm_job_id: str, admin_comment: str) -> None:
        """Write the job's AdminComment, which its owner cannot."""

    def adopt(self, slurm_job_id: str, admin_comment: str) -> None:
        """Stamp a pending job, admin-hold it and allow Slurm to requeue it, at once."""

    def set_requeue(self, slurm_job_id: str) -> None:
        """Allow Slurm to requeue the job."""

    def signal(self, slurm_job_id: str, signal: str) -> None:
        """Send a signal (``SIGUSR2``) to every task of every step of a running job, not to the batch shell."""

    def requeue_hold(self, slurm_job_id: str) -> None:
        """End the run (SIGTERM, SIGKILL after KillWait) and put the job back, held by a user's hold.

        A job that has failed or is done is put back as well. One that was cancelled is not (WrongJobStateError):
        somebody wanted it gone; nor is one that is COMPLETING, because it may have been cancelled.
        """

    def suspend(self, slurm_job_id: str) -> None:
        """SIGSTOP a running job."""

    def resume(self, slurm_job_id: str) -> None:
        """Let a suspended job go on. A hold that waited for its requeue is gone, and has to be made again."""

    def close(self) -> None:
        """Give back processes and files."""
