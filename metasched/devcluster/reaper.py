"""The reaper: a detached process that takes a cluster down when its owner process ends, however it ends."""

import os
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import metasched
from metasched.devcluster.errors import BadSettingError, NoClusterError

_ARGV = ("-m", "metasched.devcluster.reaper")


def watch(base: Path, owner: int) -> None:
    """Start a reaper of the cluster in `base` for the process `owner`; raises BadSettingError for an unknown pid."""
    try:
        # The handle refers to this process even if its pid is reused.
        handle = os.pidfd_open(owner)
    except ProcessLookupError as error:
        raise BadSettingError(f"owner_pid={owner}: no such process") from error
    package = Path(metasched.__file__).parents[1]
    env = os.environ | {"PYTHONPATH": f"{package}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")}
    argv = [sys.executable, *_ARGV, str(base), str(handle)]
    try:
        subprocess.run(
            argv,
            env=env,
            cwd="/",
            pass_fds=[handle],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=30,
        )
    finally:
        os.close(handle)


def is_reaper(argv: tuple[str, ...], base: Path) -> bool:
    """Whether a process with these arguments is a reaper of the cluster in `base`."""
    return argv[1:4] == (*_ARGV, str(base))


def _main(base: Path, handle: int) -> None:
    from metasched.devcluster.cluster import DevCluster  # noqa: PLC0415  which imports this module

    if os.fork():
        os._exit(0)
    os.setsid()
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll()
    with suppress(NoClusterError):
        DevCluster.attach(base).down()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
