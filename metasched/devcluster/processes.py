"""Processes, found and ended by their attributes in /proc, never by a stored pid alone."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Process:
    """One process of /proc.

    Attributes:
        pid: the process id.
        parent: the parent's pid.
        started: clock ticks from boot to the start; with the pid it identifies a process.
        exe: path of the program; "" where /proc hides it.
        argv: the command line.
        environ: the environment; empty where /proc hides it, or the process overwrote it.
    """

    pid: int
    parent: int
    started: int
    exe: str
    argv: tuple[str, ...]
    environ: dict[str, str]


def read(pid: int) -> Process | None:
    """Read a process; None if there is none, it is a zombie, or /proc hides it from this user (hidepid)."""
    proc = Path("/proc", str(pid))
    try:
        # The second field is the program's name in parentheses, which may contain any character.
        fields = (proc / "stat").read_text(errors="replace").rpartition(")")[2].split()
        argv = (proc / "cmdline").read_text(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    if fields[0] in "ZX":
        return None
    exe, environ = "", ""
    with suppress(OSError):
        environ = (proc / "environ").read_text(errors="replace")
        exe = str((proc / "exe").readlink())
    return Process(
        pid=pid,
        parent=int(fields[1]),
        started=int(fields[19]),
        exe=exe,
        argv=tuple(argv),
        environ=dict(pair.split("=", 1) for pair in environ.split("\0") if "=" in pair),
    )


def everyone() -> list[Process]:
    """Return all processes of this host that /proc shows."""
    found = (read(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return [process for process in found if process is not None]


def families(belongs: Callable[[Process], bool]) -> list[Process]:
    """Return the processes for which `belongs` is true and their descendants; never this process or its ancestors."""
    processes = {process.pid: process for process in everyone()}
    spared = set()
    pid = os.getpid()
    while pid in processes:
        spared.add(pid)
        pid = processes[pid].parent
    members = {pid for pid, process in processes.items() if belongs(process)}
    while more := {p.pid for p in processes.values() if p.parent in members} - members:
        members |= more
    return [processes[pid] for pid in sorted(members - spared)]


def end(process: Process, sig: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to exactly this process; nothing happens if its pid was reused, or this user lacks permission."""
    with suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(process.pid)
        try:
            now = read(process.pid)
            if now is not None and now.started == process.started:
                signal.pidfd_send_signal(handle, sig)
        finally:
            os.close(handle)


def end_families(belongs: Callable[[Process], bool], timeout: float) -> list[int]:
    """Kill the processes of `families(belongs)` until none is left; return the pids left after `timeout` seconds."""
    # A child whose parent has ended is no longer found by its parent, so earlier lists are remembered.
    known: dict[tuple[int, int], Process] = {}
    deadline = time.monotonic() + timeout
    while True:
        known |= {(process.pid, process.started): process for process in families(belongs)}
        known = {key: process for key, process in known.items() if _alive(process)}
        if not known or time.monotonic() > deadline:
            return [process.pid for process in known.values()]
        for process in known.values():
            end(process)
        time.sleep(0.01)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore SIGINT, SIGTERM and SIGHUP in the block.

    In other threads it does nothing: only the main thread handles signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with handling(signal.SIG_IGN):
        yield


@contextmanager
def handling(how: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP by `how` in the block; signals that are ignored (by nohup) stay ignored."""
    before = {
        number: handler for number in INTERRUPTS if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
    }
    try:
        for number in before:
            signal.signal(number, how)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _alive(process: Process) -> bool:
    now = read(process.pid)
    return now is not None and now.started == process.started
