"""The errors of Slurm's clients and of reading a job's tag."""

from __future__ import annotations

from metasched.core.errors import MetaschedError


class SlurmError(MetaschedError):
    """Base of all errors of Slurm's clients."""


class SlurmUnavailableError(SlurmError):
    """The controller does not answer, or Slurm's commands are not installed."""


class SlurmTimeoutError(SlurmUnavailableError):
    """A command did not end within its time; whether it took effect is not known."""


class SlurmRestartedError(SlurmUnavailableError):
    """The controller has restarted; what it tells of its jobs and nodes is incomplete for some seconds."""

    def __init__(self) -> None:
        super().__init__("slurmctld has restarted")


class SlurmTooOldError(SlurmError):
    """Slurm is of a release that metasched does not work with; the message names both releases."""

    def __init__(self, found: tuple[int, ...], oldest: tuple[int, ...]) -> None:
        names = [f"{major}.{minor:02}" for major, minor, *_ in (found, oldest)]
        super().__init__(f"Slurm {names[0]} is too old: metasched needs {names[1]} or later, here and for slurmctld")


class NoSuchJobError(SlurmError):
    """Slurm does not know the job (any more)."""


class WrongJobStateError(SlurmError):
    """The job's state does not allow the operation."""


class SlurmPermissionError(SlurmError):
    """Slurm denies this user the operation."""


class SlurmCommandError(SlurmError):
    """Slurm refuses for another reason; the message has Slurm's words."""


class MalformedOutputError(SlurmError):
    """Slurm's answer has an unknown form.

    Attributes:
        record: the record or command of the answer ("job 12", "node n1").
        field: the field that could not be read, "" for the whole record.
    """

    def __init__(self, record: str, field: str, detail: str) -> None:
        self.record, self.field = record, field
        super().__init__(f"{record}: {field + ': ' if field else ''}{detail}")


class InvalidArgumentError(SlurmError, ValueError):
    """An argument cannot be put on a Slurm command line."""


class TagError(MetaschedError):
    """A job's tag is wrong, or does not fit the job's request; the message is for the job's owner."""
