"""Torchrun between Slurm and the trainers: it hides their exit codes, and ends on the preemption signal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping


def write_exit_code(code: int, environ: Mapping[str, str]) -> bool:
    """Write the exit code to METASCHED_EXIT_FILE, and return whether that file exists.

    The wrapper makes the file where it starts torchrun, which exits with 1 for any code but 0. All ranks write it.
    """
    path = environ.get("METASCHED_EXIT_FILE")
    if not path:
        return False
    try:
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)  # the variable of an earlier run names no file
        try:
            os.write(file, b"%d\n" % code)
        finally:
            os.close(file)
    except OSError:
        return False
    return True


def torchrun_signal_warning(environ: Mapping[str, str], preemption: signal.Signals, parent: int) -> str | None:
    """Return a warning if the preemption signal, which reaches all processes of a step, would end torchrun, or None."""
    if "TORCHELASTIC_RUN_ID" not in environ:
        return None
    try:
        lines = Path(f"/proc/{parent}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    masks = dict(line.split(":", 1) for line in lines if line.startswith(("SigIgn", "SigCgt")))
    if any(int(mask, 16) >> (preemption - 1) & 1 for mask in masks.values()):
        return None
    return (
        f"torchrun would die of {preemption.name}, and this training with it: start torchrun with metasched-run, "
        f"or with its option --signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,{preemption.name}"
    )
