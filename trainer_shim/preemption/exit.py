"""How a stopped trainer's process ends: the script's own clean-up runs, the interpreter's teardown does not.

Taking apart a Python that has loaded torch costs a second of CPU time in every process (measured), while the GPUs that
were asked for stand idle.
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

    Exit hooks run last in, first out, so the package makes its instance when it is imported: what a script registers
    after that has its turn before.
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

    def repeat(self) -> None:
        """Exit once more where that has begun: a script may have caught the SystemExit, and gone on."""
        if self._code is not None:
            raise SystemExit(self._code)

    def _end(self) -> None:
        if self._code is None:
            return
        for child in multiprocessing.active_children():
            if child.daemon:  # what multiprocessing's own hook, registered before this one, would do
                child.kill()
        sockets = getattr(multiprocessing.current_process(), "_config", {}).get("tempdir")
        if sockets is not None:  # the loader workers' directory in /tmp: another would be left there by every stop
            shutil.rmtree(sockets, ignore_errors=True)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._code)


process_exit = ProcessExit()


def wait_for_gloo_threads() -> None:
    """Let gloo's threads, at the very end, let go of the last collective's tensors.

    They do so a moment after it is done, and need Python for that: an interpreter that is taken apart meanwhile aborts
    (seen on a crowded machine).
    """
    if not process_exit.started:
        time.sleep(GLOO_RELEASE_SECONDS)
