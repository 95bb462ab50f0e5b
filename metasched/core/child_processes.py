"""Child processes, ended within a known time."""

from __future__ import annotations

import subprocess


def stop(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask a child to end by SIGTERM, kill it where it has not after some seconds, and wait for its end."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
