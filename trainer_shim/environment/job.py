"""The job as the METASCHED_* variables describe it, which the wrapper sets for every trainer."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainer_shim.errors import VariableError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Job(NamedTuple):
    """The job as this start of the trainer sees it; every field but `signal` is None outside metasched.

    Attributes:
        run: the number of this run of the job, from 1.
        lease: the path of the job's lease.json.
        reports: the directory of the job's report files.
        exit_code: the exit code that asks for another run.
        signal: the preemption signal.
        uid: the job's identity.
        profiling_steps: the steps to time in a profiling run, None in every other run.
        profiling_file: the file to which profiling runs append their results.
    """

    run: int | None
    lease: Path | None
    reports: Path | None
    exit_code: int | None
    signal: signal.Signals
    uid: str | None = None
    profiling_steps: int | None = None
    profiling_file: Path | None = None


def read_job(environ: Mapping[str, str]) -> Job:
    """Read the METASCHED_* variables.

    Raises:
        VariableError: a variable has an invalid value.
    """
    lease, reports = environ.get("METASCHED_LEASE"), environ.get("METASCHED_REPORTS")
    profiling_file = environ.get("METASCHED_TRIALS")
    name = environ.get("METASCHED_SIGNAL", "SIGUSR2")
    if name not in signal.Signals.__members__:
        raise VariableError(f"METASCHED_SIGNAL is {name!r}: it must be the name of a signal, such as SIGUSR2")
    return Job(
        run=integer(environ, "METASCHED_RUN"),
        lease=Path(lease) if lease else None,
        reports=Path(reports) if reports else None,
        exit_code=integer(environ, "METASCHED_EXIT_CODE"),
        signal=signal.Signals[name],
        uid=environ.get("METASCHED_UID") or None,
        profiling_steps=integer(environ, "METASCHED_TRIAL"),
        profiling_file=Path(profiling_file) if profiling_file else None,
    )


def integer(environ: Mapping[str, str], name: str) -> int | None:
    """Return the variable as a number of 0 or more, None when it is not set.

    Raises:
        VariableError: the value is no such number.
    """
    text = environ.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise VariableError(f"{name} is {text!r}: it must be a whole number")
    return int(text)
