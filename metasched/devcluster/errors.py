"""The errors of the private cluster."""

from collections.abc import Sequence
from pathlib import Path

from metasched.core.errors import MetaschedError

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
_TAIL_LINES = 15
INSTALL = f"install Debian's packages (as root: apt-get install {' '.join(PACKAGES)})"


class DevClusterError(MetaschedError):
    """Base of all errors of the private cluster."""


class BadSettingError(DevClusterError):
    """A parameter of the cluster, or its base directory, cannot be used."""


class BaseInUseError(DevClusterError):
    """The base directory is not empty."""

    def __init__(self, base: Path, *, cluster: bool) -> None:
        holds, fix = ("a cluster", "take it down first") if cluster else ("other files", "choose another")
        super().__init__(f"{base} already holds {holds}: {fix}")


class NoClusterError(DevClusterError):
    """The base directory holds no cluster."""

    def __init__(self, base: Path, why: str) -> None:
        super().__init__(f"no cluster in {base}: {why}")


class SlurmMissingError(DevClusterError):
    """Slurm or munge is neither installed nor available from Debian's packages."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; {INSTALL}")


class StartError(DevClusterError):
    """A daemon did not start, or the nodes did not come up in time."""

    def __init__(self, what: str, log: Path) -> None:
        super().__init__(f"{what}; {tail(log)}")


class CommandError(DevClusterError):
    """A Slurm command failed or took too long."""

    def __init__(self, argv: Sequence[str], why: str) -> None:
        super().__init__(f"`{' '.join(argv)}`: {why}")


class LeftoverError(DevClusterError):
    """Processes of the cluster survived SIGKILL."""

    def __init__(self, base: Path, pids: Sequence[int]) -> None:
        super().__init__(f"processes of the cluster in {base} do not die: {', '.join(map(str, pids))}")


def tail(log: Path) -> str:
    """Return the last lines of a log under a headline, for an error message."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError as error:
        return f"{log}: {error.strerror}"
    return "\n".join([f"the end of {log}:", *lines])
