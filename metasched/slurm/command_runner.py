"""Slurm's commands as processes: each call has a timeout, and each failure is a typed error."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

from metasched.slurm.errors import (
    NoSuchJobError,
    SlurmCommandError,
    SlurmError,
    SlurmPermissionError,
    SlurmTimeoutError,
    SlurmUnavailableError,
    WrongJobStateError,
)

Buffer = bytes | mmap.mmap
_SBATCH_SECONDS = 60.0
_UNREACHABLE = re.compile(
    r"unable to contact|socket timed out|zero bytes|connection refused|connect failure|standby mode|unexpected message|"
    r"communication.*fail|unable to process configuration|address already in use|authentication|munge|"
    r"missing socket|transport endpoint|connection reset|connection timed out|broken pipe|no route to host|"
    r"network is \w+",
    re.IGNORECASE,
)
_MEANINGS: Sequence[tuple[re.Pattern[str], type[SlurmError]]] = (
    (re.compile(r"invalid job id", re.IGNORECASE), NoSuchJobError),
    (re.compile(r"permission denied|invalid user id|not permitted", re.IGNORECASE), SlurmPermissionError),
    (
        re.compile(
            r"job is pending|no longer pending|not pending|not running|already finished|already completing|"
            r"being completed|not suspended|already suspended|presently disabled|altered now|not available right now",
            re.IGNORECASE,
        ),
        WrongJobStateError,
    ),
    (_UNREACHABLE, SlurmUnavailableError),
)


def run_command(
    argv: Sequence[str],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    stdin: str | None = "",
    label: str | None = None,
) -> tuple[str, str]:
    """Run a command, and return its standard output and standard error.

    Args:
        argv: the command.
        timeout: seconds after which the command is killed.
        env: environment of the command; None for this process's.
        stdin: the text on the command's standard input; None for this process's standard input.
        label: the command in the error of a command that fails; None for all its words.

    Raises:
        SlurmError: the command cannot be started, does not end in time or fails.
    """
    status, output, complaint = _run(argv, timeout, env, stdin)
    if status:
        raise _failure(label or " ".join(argv), status, complaint)
    return output, complaint


def try_command(argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a command that may succeed in part, and return its exit status and its standard error.

    Args:
        argv: the command.
        timeout: seconds after which the command is killed.
        env: environment of the command; None for this process's.

    Raises:
        SlurmUnavailableError: the command cannot be started, or does not end in time.
    """
    status, _, complaint = _run(argv, timeout, env, "")
    return status, complaint


def run_for_large_output(argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None) -> Buffer:
    """Run a command, and return its standard output, of which no copy is made: Slurm's JSON of 10,000 jobs has 30 MB.

    Args:
        argv: the command.
        timeout: seconds after which the command is killed.
        env: environment of the command; None for this process's.

    Raises:
        SlurmError: the command cannot be started, does not end in time or fails.
    """
    with os.fdopen(os.memfd_create("output"), "w+b") as file:
        run_into_file(argv, file, timeout=timeout, env=env)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""


def run_into_file(
    argv: Sequence[str],
    file: IO[bytes],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    label: str | None = None,
) -> None:
    """Run a command whose standard output goes to a file.

    Args:
        argv: the command.
        file: the open file.
        timeout: seconds after which the command is killed.
        env: environment of the command; None for this process's.
        label: the command in the error of a command that fails; None for all its words.

    Raises:
        SlurmError: the command cannot be started, does not end in time or fails.
    """
    status, _, complaint = _run(argv, timeout, env, "", file)
    if status:
        raise _failure(label or " ".join(argv), status, complaint)


def error_of(command: str, complaint: str) -> SlurmError:
    """Return the typed error for a complaint of Slurm about a command, as one line that fits a log."""
    return _error_type(complaint)(f"{command[:300]}: {' / '.join(complaint.splitlines())[:600]}")


def _failure(command: str, status: int, complaint: str) -> SlurmError:
    """Return the typed error for a command that has failed.

    Slurm gives words with every refusal; `scontrol show config` has none while slurmctld is away.
    """
    if not complaint.strip():
        return SlurmUnavailableError(f"{command[:300]}: exit status {status} without a message")
    return error_of(command, complaint.strip())


def sbatch(
    arguments: Sequence[str], *, env: Mapping[str, str] | None = None, script: str | None = None
) -> tuple[str, str]:
    """Submit a job by sbatch, and return its Slurm job id and sbatch's warnings.

    Args:
        arguments: sbatch's options, and the path of the script with its arguments.
        env: environment of sbatch; None for this process's.
        script: the text of the script; None for a script that the arguments name, or on standard input.

    Raises:
        SlurmError: sbatch cannot be started, does not answer within a minute, or refuses the job. The message of a
            refusal is the whole of sbatch's standard error, line by line: a site's job_submit plugin may explain at
            length what to change.
    """
    argv = ["sbatch", "--parsable", *arguments]
    try:
        status, answer, complaint = _run(argv, _SBATCH_SECONDS, env, script)
    except SlurmTimeoutError as error:
        raise SlurmTimeoutError(f"{error}; `squeue --me` says whether the job was submitted") from None
    if status:
        raise _error_type(complaint)(complaint.strip() or f"sbatch: exit status {status}")
    return answer.strip().partition(";")[0], complaint.rstrip("\n")


def _run(
    argv: Sequence[str],
    timeout: float,
    env: Mapping[str, str] | None,
    stdin: str | None,
    stdout: IO[bytes] | None = None,
) -> tuple[int, str, str]:
    """Run a command, and return its exit status, standard output and standard error.

    The standard output is "" where it goes to a file.
    """
    try:
        done = subprocess.run(
            argv,
            env=env,
            input=None if stdin is None else stdin.encode(),
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmTimeoutError(f"{argv[0]} did not end within {timeout:g} s") from None
    except OSError as error:
        raise SlurmUnavailableError(f"cannot start {argv[0]}: {error}; is Slurm installed here and on PATH?") from error
    except ValueError as error:  # a null character in an argument
        raise SlurmUnavailableError(f"cannot start {argv[0]}: {error}") from error
    return done.returncode, (done.stdout or b"").decode(errors="replace"), done.stderr.decode(errors="replace")


def _error_type(complaint: str) -> type[SlurmError]:
    return next((kind for pattern, kind in _MEANINGS if pattern.search(complaint)), SlurmCommandError)


def plain_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Slurm's commands: without the variables by which people set output formats."""
    drop = ("SACCT_", "SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_", "SBATCH_", "SALLOC_", "SRUN_", "SLURM_")
    keep = {key: value for key, value in env.items() if not key.startswith(drop) or key == "SLURM_CONF"}
    # SLURM_BITSTR_LEN=0: array expressions are never cut short.
    return keep | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
