"""The web page of the demo: on a loopback address, shown to the user who runs the demo, as an admin."""

from __future__ import annotations

import getpass
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from metasched.core.child_processes import stop

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/")


@contextmanager
def page(config: Path, environment: Mapping[str, str]) -> Iterator[str | None]:
    """Run the web page of a configuration file, and end it on exit; its log is ``web.log`` beside the file.

    Yields:
        The page's address; None where the page's packages are not installed, or where it does not start.
    """
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        yield None
        return
    argv = [sys.executable, "-m", "metasched", "--config", str(config), "web"]
    log_path = config.parent / "web.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*argv, "--listen", "127.0.0.1:0", "--viewer", getpass.getuser()],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield _address(process, log_path)
    finally:
        stop(process, _STOP_SECONDS)


def _address(process: subprocess.Popen[bytes], log: Path) -> str | None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if found := _ADDRESS.search(log.read_text(encoding="utf-8", errors="replace")):
            return found[0]
        time.sleep(0.05)
    return None
