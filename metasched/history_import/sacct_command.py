"""Calls of ``sacct``, Slurm's accounting."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO

from metasched.core.errors import MetaschedError
from metasched.slurm.command_runner import plain_environment, run_into_file
from metasched.slurm.errors import SlurmError, SlurmTimeoutError

_TIMEOUT_SECONDS = 600.0
_OPTIONS = ("--allusers", "--allocations", "--parsable2", "--duplicates")
_IDS_OF_ONE_CALL = 1000
_TASK = re.compile(r"([0-9]{1,10})\|([0-9]{1,10}_[0-9]{1,10})", re.ASCII)


class AccountingError(MetaschedError):
    """Slurm's accounting could not be read."""


@contextmanager
def ask_sacct(
    columns: Sequence[str], since: datetime, until: datetime | None, env: Mapping[str, str] = os.environ
) -> Iterator[tuple[Path, str]]:
    """Run ``sacct`` for all users' jobs of a period; its output is a temporary file for the time of the context.

    Args:
        columns: the columns of the output.
        since: beginning of the period, in local time.
        until: end of the period; None for now.
        env: the daemon's or user's environment; variables that change sacct's output are not passed on.

    Returns:
        The file's path and the delimiter between its columns.

    Raises:
        AccountingError: sacct cannot be started, fails, or takes longer than ten minutes.
    """
    # The delimiter is random, so that no job's name can contain it and forge a field.
    delimiter = f"|{secrets.token_hex(8)}|"
    period = [f"--starttime={since:%Y-%m-%dT%H:%M:%S}", *([f"--endtime={until:%Y-%m-%dT%H:%M:%S}"] if until else [])]
    with tempfile.NamedTemporaryFile(prefix="metasched-sacct-") as output:
        options = [f"--delimiter={delimiter}", *period, f"--format={','.join(columns)}"]
        _run(options, env, output, advice=" (a file with sacct's output can be imported, too)")
        yield Path(output.name), delimiter


def array_tasks(raw_ids: Collection[str], env: Mapping[str, str] = os.environ) -> dict[str, set[str]]:
    """Return the array tasks that have, or had, these ids: Slurm gives each task that starts an id of its own.

    Args:
        raw_ids: Slurm job ids as a job's ``SLURM_JOB_ID`` has them; others than whole numbers are left out.
        env: as for ``ask_sacct``.

    Returns:
        Names of tasks such as ``1234_5``, several where Slurm used an id again. Ids of no task are not in it.

    Raises:
        AccountingError: as for ``ask_sacct``.
    """
    ids = sorted(one for one in raw_ids if re.fullmatch(r"[0-9]{1,10}", one, re.ASCII))
    found: dict[str, set[str]] = {}
    for first in range(0, len(ids), _IDS_OF_ONE_CALL):
        asked = ids[first : first + _IDS_OF_ONE_CALL]
        with tempfile.TemporaryFile() as output:
            _run([f"--jobs={','.join(asked)}", "--starttime=1970-01-01", "--format=JobIDRaw,JobID"], env, output)
            output.seek(0)
            for line in output:
                if match := _TASK.fullmatch(line.decode(errors="replace").strip()):
                    found.setdefault(match[1], set()).add(match[2])
    return found


def _run(options: Sequence[str], env: Mapping[str, str], output: IO[bytes], advice: str = "") -> None:
    """Write sacct's output to a file; raises AccountingError, with the advice unless sacct only took too long."""
    argv = ["sacct", *_OPTIONS, *options]
    try:
        run_into_file(argv, output, timeout=_TIMEOUT_SECONDS, env=plain_environment(env), label="sacct")
    except SlurmTimeoutError as error:
        raise AccountingError(f"{error}: ask for fewer days") from None
    except SlurmError as error:
        raise AccountingError(f"{error}{advice}") from error
