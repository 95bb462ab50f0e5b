"""The command-line client: squeue, sinfo, scontrol and scancel. Works with Slurm 22.05 and later."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from metasched.slurm import associations, field_parsers, json_parser, json_releases, topology
from metasched.slurm.associations import Associations
from metasched.slurm.client import OUT_OF_REACH, Geometry, Reservation, SlurmJob, SlurmNode, SlurmSettings
from metasched.slurm.command_runner import (
    Buffer,
    error_of,
    plain_environment,
    run_command,
    run_for_large_output,
    try_command,
)
from metasched.slurm.errors import (
    InvalidArgumentError,
    MalformedOutputError,
    NoSuchJobError,
    SlurmError,
    SlurmPermissionError,
    SlurmTooOldError,
    SlurmUnavailableError,
    WrongJobStateError,
)
from metasched.slurm.job_list import JobList
from metasched.slurm.job_readers import JobReader, JsonReader, TextReader
from metasched.slurm.pyslurm_pipe import PyslurmPipe
from metasched.slurm.scontrol_pipe import ScontrolPipe, fits
from metasched.slurm.update_arguments import update_arguments

T = TypeVar("T")
_log = logging.getLogger(__name__)

_AS_OF = re.compile(r"Configuration data as of ([0-9]+)\s")
_BOOT_TIME = re.compile(r"^BOOT_TIME\s*=\s*([0-9]+)\s*$", re.MULTILINE)
_NAMED_JOB = re.compile(r"job id ([0-9]+(?:_[0-9]+)?):", re.ASCII)
_RESERVATIONS_SECONDS = 60.0
_RACKS_SECONDS = 300.0
_MAX_COMMENT = 4096
# The scripts of new jobs are read one after the other while scheduling waits.
_SCRIPT_SECONDS = 3.0
MOST_SIGNALLED = 100
"""Jobs that one `scancel` sends a signal, at most."""
MOST_SINGLE_READS = 10
"""Jobs beyond which one list of all jobs is read, rather than one job after the other."""


class CommandLineClient:
    """A SlurmClient that runs Slurm's own commands.

    Args:
        env: environment of the commands, PATH and SLURM_CONF above all; None for this process's.
        timeout: seconds that any one command may take. Slurm's own commands give up after about 9 s without a
            controller.
        before_write: called before each command that changes something; an exception from it keeps the command from
            being sent.
    """

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        timeout: float = 15,
        before_write: Callable[[], None] = lambda: None,
    ) -> None:
        self._env = plain_environment(os.environ if env is None else env)
        self._timeout = timeout
        self._before_write = before_write
        self._scontrol: ScontrolPipe | PyslurmPipe = ScontrolPipe(self._env)
        self._lock = threading.Lock()  # one command on the pipe at a time
        self._jobs = JobList(self._run, self._new_job_reader, self._warn)
        self._nodes_parser = json_parser.NodesParser()
        self._reservations: tuple[Reservation, ...] = ()
        self._reservations_read: tuple[frozenset[str], float] | None = None  # names of the nodes reserved then; when
        self._reserved: frozenset[str] = frozenset()  # names of the nodes reserved at the last read of nodes
        self._racks: tuple[Mapping[str, str], float] | None = None  # racks, and when they were read
        self._logged: set[str] = set()
        self._installed: tuple[int, ...] | None = None

    def write_by_pyslurm(self) -> str:
        """Send writes by pyslurm from now on, where pyslurm can; return the versions of pyslurm and Slurm as a text.

        Raises:
            SlurmTimeoutError, SlurmUnavailableError: no installed pyslurm works; the client stays as it was.
        """
        pipe = PyslurmPipe(self._env, ScontrolPipe(self._env))
        try:
            found = pipe.start(self._timeout)
        except SlurmError:
            pipe.close()
            raise
        self._scontrol.close()
        self._scontrol = pipe
        return found

    # Reads

    def settings(self) -> SlurmSettings:
        """Read the settings that `scontrol show config` prints."""
        self._release()
        text = self._run(["scontrol", "show", "config"])
        values = {
            key.strip(): value.strip()
            for key, equals, value in (line.partition("=") for line in text.splitlines())
            if equals
        }
        try:
            return SlurmSettings(
                version=tuple(int(part) for part in re.findall(r"[0-9]+", values["SLURM_VERSION"])[:3]),
                cluster=values["ClusterName"],
                requeue_exit_hold=_exit_codes(values.get("RequeueExitHold", "")),
                job_submit_plugins=tuple(
                    filter(None, values.get("JobSubmitPlugins", "").replace("(null)", "").split(","))
                ),
                as_of=float(as_of[1]) if (as_of := _AS_OF.match(text)) else None,
                values=values,
            )
        except KeyError as error:
            raise MalformedOutputError("scontrol show config", "", repr(error)) from error

    def boot_time(self) -> float | None:
        """Read BOOT_TIME of `scontrol show config`, in 8 ms."""
        found = _BOOT_TIME.search(self._run(["scontrol", "show", "config"]))
        return None if found is None else float(found[1])

    def jobs(self) -> Sequence[SlurmJob]:
        """See SlurmClient and ``JobList``; where thousands of jobs come at once, some polls list the first of them."""
        with self._lock:
            return self._jobs.read()

    def nodes(self) -> Sequence[SlurmNode]:
        """Read all nodes as JSON, by the command of this host's Slurm release."""
        parsed = self._nodes_parser.parse(self._run(json_releases.nodes_command(self._release())))
        self._warn(parsed.errors)
        self._reserved = frozenset(node.name for node in parsed.records if node.reserved)
        return parsed.records

    def jobs_and_nodes(self) -> tuple[Sequence[SlurmJob], Sequence[SlurmNode]]:
        """Read the nodes in a thread while the jobs are read; an error is raised once both reads have ended."""
        with ThreadPoolExecutor(1) as thread:
            nodes = thread.submit(self.nodes)
            jobs = self.jobs()
        return jobs, nodes.result()

    def reservations(self) -> Sequence[Reservation]:
        """See SlurmClient; read again when other nodes are reserved than at the last read, and once a minute."""
        now = time.monotonic()
        reserved, since = self._reservations_read or (None, now)
        if reserved != self._reserved or now - since >= _RESERVATIONS_SECONDS:
            parsed = json_parser.parse_reservations(self._run(["scontrol", "--all", "-o", "show", "reservation"]))
            self._warn(parsed.errors)
            self._reservations, self._reservations_read = parsed.records, (self._reserved, now)
        return self._reservations

    def racks(self) -> Mapping[str, str]:
        """See SlurmClient; read every five minutes, because a topology changes only when Slurm is reconfigured."""
        now = time.monotonic()
        if self._racks is None or now - self._racks[1] >= _RACKS_SECONDS:
            self._racks = self._read_racks(), now
        return self._racks[0]

    def associations(self) -> Associations | None:
        """Read associations, QOS and partitions from `scontrol show`; None where Slurm does not permit it."""
        try:
            text = self._run(["scontrol", "-o", "show", "assoc_mgr", "flags=assoc,qos"])
            return associations.parse(text, self._run(["scontrol", "-a", "-o", "show", "partition"]))
        except SlurmPermissionError:
            return None

    def batch_script(self, slurm_job_id: str) -> str:
        """Read the script that `scontrol write batch_script` prints; raises SlurmError where it prints none."""
        argv = ["scontrol", "write", "batch_script", _checked(slurm_job_id), "-"]
        script, complaint = run_command(argv, timeout=min(self._timeout, _SCRIPT_SECONDS), env=self._env)
        if not script:  # the exit status is 0 even after an error
            raise error_of(" ".join(argv), complaint.strip() or "no script")
        return script

    # Writes

    def hold(self, slurm_job_id: str) -> None:
        """Put an administrator's hold on a pending job, by the command `hold`."""
        # From root or SlurmUser this is an administrator's hold. It replaces a user's with no moment without a hold.
        self._control("hold", _checked(slurm_job_id))

    def release(self, slurm_job_id: str) -> None:
        """Let Slurm start a held job, by the command `release`."""
        self._control("release", _checked(slurm_job_id))

    def await_dependency(self, slurm_job_id: str) -> None:
        """Let Slurm resolve a pending job's dependency: set a begin time of OUT_OF_REACH, then release the job."""
        begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(OUT_OF_REACH))
        self._control("update", f"JobId={_checked(slurm_job_id)}", f"StartTime={begin}")
        self._control("release", _checked(slurm_job_id))

    def update(self, slurm_job_id: str, geometry: Geometry) -> None:
        """Give a pending job another size by one `update`, and then its nodes by another."""
        size, place = update_arguments(geometry)
        self._control("update", f"JobId={_checked(slurm_job_id)}", *size)
        self._control("update", f"JobId={_checked(slurm_job_id)}", *place)

    def stamp(self, slurm_job_id: str, admin_comment: str) -> None:
        """Write the job's AdminComment; raises InvalidArgumentError for one that is too long or not printable."""
        self._comment(slurm_job_id, admin_comment)

    def adopt(self, slurm_job_id: str, admin_comment: str) -> None:
        """Stamp and hold a pending job, and allow Slurm to requeue it, by one `update`."""
        # From root or SlurmUser, priority 0 is an administrator's hold.
        self._comment(slurm_job_id, admin_comment, "Priority=0", "Requeue=1")

    def _comment(self, slurm_job_id: str, admin_comment: str, *more: str) -> None:
        if not admin_comment.isprintable() or len(admin_comment) > _MAX_COMMENT:
            raise InvalidArgumentError(f"not fit for an AdminComment: {admin_comment[:80]!a}")
        words = ("update", f"JobId={_checked(slurm_job_id)}", f"AdminComment={admin_comment}", *more)
        if fits(words):
            self._control(*words)
        else:  # blanks and quotes need a process of their own: on the pipe, scontrol keeps the quotes around a text
            self._write(["scontrol", *words], slurm_job_id)

    def set_requeue(self, slurm_job_id: str) -> None:
        """Allow Slurm to requeue the job, by an `update`."""
        self._control("update", f"JobId={_checked(slurm_job_id)}", "Requeue=1")

    def signal(self, slurm_job_ids: Sequence[str], signal: str) -> Mapping[str, SlurmError]:
        """Send a signal to all tasks of those jobs of which Slurm says now that they are running, by `scancel`.

        Each `scancel` with a signal reads all jobs from slurmctld, so one is for many jobs.
        """
        if not re.fullmatch(r"SIG[A-Z0-9]{1,10}", signal, re.ASCII):
            raise InvalidArgumentError(f"not a signal: {signal[:80]!a}")
        # For a pending or suspended job, scancel would retry for 20 s.
        running, errors = self._running(slurm_job_ids)
        for first in range(0, len(running), MOST_SIGNALLED):
            errors |= self._signal_group(running[first : first + MOST_SIGNALLED], signal.removeprefix("SIG"))
        return errors

    def _signal_group(self, slurm_job_ids: Sequence[str], signal: str) -> Mapping[str, SlurmError]:
        """Send a signal by one `scancel`, which tries all jobs and names most of those that it could not signal.

        Tasks of an array are given as such: the last one's own job id is that of the array, and means all tasks.
        """
        command = ["scancel", "-s", signal, *slurm_job_ids]
        with self._writing(*slurm_job_ids):
            status, complaint = try_command(command, timeout=self._timeout, env=self._env)
        if not status:
            return {}
        whole = error_of("scancel", complaint.strip() or f"exit status {status} without a message")
        if isinstance(whole, SlurmUnavailableError):
            raise whole
        running, errors = self._running(slurm_job_ids)  # some have ended since they were looked at
        lines = {found[1]: line for line in complaint.splitlines() if (found := _NAMED_JOB.search(line))}
        errors |= {one: error_of("scancel", lines[one]) for one in running if one in lines}
        return errors or dict.fromkeys(slurm_job_ids, whole)

    def requeue_hold(self, slurm_job_id: str) -> None:
        """End the run and requeue the job by the command `requeuehold`, unless it may have been cancelled."""
        # Slurm would requeue a cancelled job, too: its owner may have cancelled it since the last read.
        state = self._current(slurm_job_id)
        if state in {"CANCELLED", "COMPLETING"}:  # a COMPLETING job may have been cancelled
            raise WrongJobStateError(f"job {slurm_job_id} is {state}: it is not requeued")
        self._control("requeuehold", _checked(slurm_job_id))

    def cancel(self, slurm_job_id: str) -> None:
        """End a job by `scancel`, whatever its state."""
        self._write(["scancel", _checked(slurm_job_id)], slurm_job_id)

    def suspend(self, slurm_job_id: str) -> None:
        """Suspend a running job, by the command `suspend`."""
        self._pause("suspend", _checked(slurm_job_id))

    def resume(self, slurm_job_id: str) -> None:
        """Resume a suspended job, by the command `resume`."""
        self._pause("resume", _checked(slurm_job_id))

    def close(self) -> None:
        """End the persistent scontrol, or pyslurm's process."""
        with self._lock:
            self._scontrol.close()

    def _release(self) -> tuple[int, ...]:
        """Return the release of Slurm's commands on this host, read once; raises SlurmTooOldError."""
        if self._installed is None:
            answer = self._run(["sinfo", "--version"])
            try:
                found = json_releases.release(answer)
            except ValueError as error:
                raise MalformedOutputError("sinfo --version", "", str(error)) from error
            if found < json_releases.OLDEST:
                raise SlurmTooOldError(found, json_releases.OLDEST)
            self._installed = found
        return self._installed

    def _new_job_reader(self) -> JobReader:
        if self._release() >= json_releases.PRINTS_SINGLE_JOBS:
            return JsonReader(self._run_for_large_output)
        return TextReader(self._run, self._run_for_large_output, _start_thread)

    def _read_racks(self) -> Mapping[str, str]:
        """Read the topology; an unreadable one counts as none, and is logged."""
        try:
            racks = topology.parse_racks(self._run(["scontrol", "show", "topology"]))
        except SlurmUnavailableError:
            raise
        except SlurmError as error:
            self._log_once(logging.WARNING, "topology", f"nodes have no racks: {error}")
            return {}
        if not racks:
            self._log_once(logging.INFO, "topology", "nodes have no racks: Slurm has no topology of switches or blocks")
        return racks

    def _current(self, slurm_job_id: str) -> str:
        """Ask Slurm for the state of one job."""
        answer = self._run(["squeue", "-h", "-a", "-t", "all", "-o", "%T", "-j", _checked(slurm_job_id)])
        if not (state := answer.partition("\n")[0].strip()):
            raise NoSuchJobError(f"Slurm does not know job {slurm_job_id} (any more)")
        return state

    def _running(self, slurm_job_ids: Sequence[str]) -> tuple[list[str], dict[str, SlurmError]]:
        """Ask Slurm which of some jobs are running.

        Returns:
            The Slurm job ids of those that are, and why the others are not.
        """
        running: list[str] = []
        errors: dict[str, SlurmError] = {}
        listed = self._states() if len(slurm_job_ids) > MOST_SINGLE_READS else {}
        for slurm_job_id in slurm_job_ids:
            try:
                state = listed.get(_checked(slurm_job_id)) or self._current(slurm_job_id)
            except SlurmUnavailableError:
                raise
            except SlurmError as error:
                errors[slurm_job_id] = error
                continue
            if state == "RUNNING":
                running.append(slurm_job_id)
            else:
                text = f"job {slurm_job_id} is {state}: only a running job can be sent a signal"
                errors[slurm_job_id] = WrongJobStateError(text)
        return running, errors

    def _states(self) -> Mapping[str, str]:
        """Ask Slurm for the states of all jobs, by Slurm job id; tasks that share a record are left out."""
        rows = (line.split() for line in self._run(["squeue", "-h", "-a", "-t", "all", "-o", "%i %T"]).splitlines())
        return {row[0]: row[1] for row in rows if len(row) == 2}  # noqa: PLR2004  the format's

    def _pause(self, verb: str, slurm_job_id: str) -> None:
        try:
            self._control(verb, slurm_job_id)
        except SlurmUnavailableError:
            self._current(slurm_job_id)  # scontrol complains of an unknown job as of a controller that is away
            raise

    def _write(self, argv: Sequence[str], slurm_job_id: str) -> None:
        with self._writing(slurm_job_id):
            self._run(argv)

    @contextlib.contextmanager
    def _writing(self, *slurm_job_ids: str) -> Iterator[None]:
        """Let the block write to some jobs, if writes are allowed; the next poll reads these jobs again."""
        self._before_write()
        try:
            yield
        finally:
            for slurm_job_id in slurm_job_ids:
                self._jobs.note_write(slurm_job_id)

    def _control(self, *words: str) -> None:
        with self._lock:
            self._before_write()
            self._jobs.note_write(words[1].removeprefix("JobId="))
            complaint = self._scontrol.command(words, self._timeout)
        if complaint:
            raise error_of(" ".join(["scontrol", *words]), complaint)

    def _run(self, argv: Sequence[str]) -> str:
        """Run a command, and return its standard output."""
        return run_command(argv, timeout=self._timeout, env=self._env)[0]

    def _run_for_large_output(self, argv: Sequence[str]) -> Buffer:
        """Run a command with a large output."""
        return run_for_large_output(argv, timeout=self._timeout, env=self._env)

    def _warn(self, errors: Sequence[MalformedOutputError]) -> None:
        for error in errors:
            self._log_once(logging.WARNING, error.record, f"record left out, because it cannot be read: {error}")

    def _log_once(self, level: int, subject: str, message: str) -> None:
        """Log the first message about each subject: every poll would fill the log otherwise."""
        if subject not in self._logged:
            self._logged.add(subject)
            _log.log(level, "%s", message)


def _start_thread(call: Callable[[], T]) -> Future[T]:
    """Start a call in a thread that ends with it."""
    threads = ThreadPoolExecutor(1)
    started = threads.submit(call)
    threads.shutdown(wait=False)
    return started


def _checked(slurm_job_id: str) -> str:
    """Return the job id; raises InvalidArgumentError for any other text, which must not reach a command line."""
    if not field_parsers.is_slurm_job_id(slurm_job_id):
        raise InvalidArgumentError(f"not a job id: {slurm_job_id[:80]!a}")
    return slurm_job_id


def _exit_codes(text: str) -> frozenset[int]:
    """Read the exit codes of ``85,90-92``; other words (names of states) are skipped."""
    codes: set[int] = set()
    for part in text.split(","):
        with contextlib.suppress(ValueError):
            codes.update(field_parsers.array_tasks(part.strip()))
    return frozenset(codes)
