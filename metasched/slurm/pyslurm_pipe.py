"""Writes by pyslurm instead of scontrol, where pyslurm is as good.

``PyslurmPipe`` has the interface of ``ScontrolPipe`` and takes the same words. scontrol carries out what pyslurm cannot
(pyslurm ignores an update of nodes silently, and knows no array tasks by id). Reads stay with Slurm's commands: pyslurm
reports less of pending jobs than their JSON.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metasched.slurm import timed_pipes
from metasched.slurm.errors import SlurmTimeoutError, SlurmUnavailableError
from metasched.slurm.scontrol_pipe import ScontrolPipe

_END_SECONDS = 5.0
_JOB_VERBS = frozenset({"hold", "release", "requeuehold", "suspend", "resume"})
# scontrol's keys -> pyslurm's names and types.
_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "AdminComment": ("admin_comment", str),
    "Priority": ("priority", int),
    "Requeue": ("is_requeueable", lambda text: text == "1"),
}


def request(words: Sequence[str]) -> dict[str, Any] | None:
    """Translate scontrol's words into a request to the pyslurm child; None where scontrol must do it."""
    verb, *rest = words
    if verb in _JOB_VERBS and len(rest) == 1 and _is_plain(rest[0]):
        return {"verb": verb, "job": int(rest[0])}
    if verb != "update" or not rest:
        return None
    (key, job), *pairs = ((key, value) for key, _, value in (word.partition("=") for word in rest))
    if key != "JobId" or not _is_plain(job) or not all(name in _FIELDS and value for name, value in pairs):
        return None
    fields = {_FIELDS[name][0]: _FIELDS[name][1](value) for name, value in pairs}
    return {"verb": verb, "job": int(job), "fields": fields}


def _is_plain(slurm_job_id: str) -> bool:
    return slurm_job_id.isascii() and slurm_job_id.isdigit()


class PyslurmPipe:
    """The pyslurm child process; started by the first command, and again after it died or was killed.

    Args:
        env: environment of the child, SLURM_CONF above all.
        scontrol: carries out what pyslurm cannot do; closed with this pipe.
    """

    def __init__(self, env: Mapping[str, str], scontrol: ScontrolPipe) -> None:
        self._env = env
        self._scontrol = scontrol
        self._child: _Child | None = None

    def start(self, timeout: float) -> str:
        """Start the child, and return the versions of pyslurm and Slurm as a text for the log.

        Raises:
            SlurmTimeoutError, SlurmUnavailableError: no installed pyslurm works with this Slurm.
        """
        self._end()
        self._child = _Child(self._env)
        hello = self._answer("its start", time.monotonic() + timeout)
        return f"pyslurm {hello.get('pyslurm')}, Slurm {hello.get('slurm')}"

    def command(self, words: Sequence[str], timeout: float) -> str:
        """Carry out one scontrol command, and return Slurm's complaint; "" after success.

        Raises:
            InvalidArgumentError: a word that scontrol would read as something else.
            SlurmTimeoutError: no answer in time; whether the command took effect is not known.
            SlurmUnavailableError: the child cannot be started, or ended during the command.
        """
        for_child = request(words)
        if for_child is None:
            return self._scontrol.command(words, timeout)
        deadline, line = time.monotonic() + timeout, json.dumps(for_child)
        if self._child is None or not self._child.alive:
            self.start(timeout)
        return str(self._answer(line, deadline, line)["complaint"])

    def close(self) -> None:
        """End the child process and scontrol."""
        self._end()
        self._scontrol.close()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _answer(self, what: str, deadline: float, line: str = "") -> dict[str, Any]:
        assert self._child is not None  # noqa: S101  `start` has set it
        try:
            if line:
                self._child.write(f"{line}\n".encode())
            answer: dict[str, Any] = json.loads(self._child.read_line(deadline))
        except TimeoutError:
            self._end()
            raise SlurmTimeoutError(f"pyslurm did not answer in time: {what}") from None
        except (OSError, EOFError, ValueError):
            last_line = self._child.last_line()
            self._end()
            raise SlurmUnavailableError(f"pyslurm's process ended during {what}: {last_line}") from None
        return answer


class _Child:
    """One child process, with its answers and its standard error."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed by `end`
        argv = [sys.executable, "-m", "metasched.slurm.pyslurm_child"]
        try:
            self._process = timed_pipes.start(argv, env, stdout=subprocess.PIPE, stderr=self._stderr)
        except SlurmUnavailableError as error:
            self._stderr.close()
            raise SlurmUnavailableError(f"pyslurm's process: {error}") from error

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def write(self, data: bytes) -> None:
        """Write to the process's standard input."""
        timed_pipes.stream(self._process.stdin).write(data)

    def read_line(self, deadline: float) -> bytes:
        """Return one line of the answer; raises TimeoutError, or EOFError where the process has ended."""
        line = b""
        for chunk in timed_pipes.chunks(self._process.stdout, deadline):
            line += chunk
            if line.endswith(b"\n"):
                break
        return line

    def last_line(self) -> str:
        """Return the last line of standard error of a child that ended, or is just ending; for error messages."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "no message")

    def end(self) -> None:
        """End the process, and close its standard error."""
        timed_pipes.end(self._process)
        self._stderr.close()
