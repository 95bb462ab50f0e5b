"""The exit of a stopped trainer: the script's own clean-up runs, the interpreter's teardown does not.

The teardown of a Python that has loaded torch costs a second of CPU time in every process (measured), while the GPUs
that another job waits for are idle.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing.util  # registers its exit hook before ours, which must run first
import os
import shutil
import sys
import time
from typing import NoReturn

GLOO_RELEASE_SECONDS = 0.1  # between the last collective and the end of a process


class ProcessExit:
    """The agreed exit of this process, if there is one.

    Exit hooks run last in, first out. The package makes its instance when it is imported, so that the hooks of a script
    run before this one.
    """

    def __init__(self) -> None:
        self._code: int | None = None
        atexit.register(self._end)

    @property
    def started(self) -> bool:
        """Whether the process ends without the interpreter's teardown."""
        return self._code is not None

    def start(self, code: int) -> NoReturn:
        """Exit by SystemExit, through the script's `finally` clauses and exit hooks."""
        self._code = code
        raise SystemExit(code)

    def raise_if_started(self) -> None:
        """Raise SystemExit again after `start`: a script may have caught the first one."""
        if self._code is not None:
            raise SystemExit(self._code)

    def _end(self) -> None:
        if self._code is None:
            return
        for child in multiprocessing.active_children():
            if child.daemon:  # as multiprocessing's own hook does, which would run after this one
                child.kill()
        sockets = getattr(multiprocessing.current_process(), "_config", {}).get("tempdir")
        if sockets is not None:  # the loader workers' directory in /tmp, which every stop would leave behind
            shutil.rmtree(sockets, ignore_errors=True)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._code)


process_exit = ProcessExit()


def wait_for_gloo_threads() -> None:
    """Wait until gloo's threads have released the tensors of the last collective; to be called at exit.

    The threads release them a moment after the collective, and need Python for that: an interpreter whose teardown has
    begun aborts (seen on a loaded machine).
    """
    if not process_exit.started:
        time.sleep(GLOO_RELEASE_SECONDS)
