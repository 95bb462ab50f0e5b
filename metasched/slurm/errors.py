"""What can go wrong between metasched and Slurm."""

from __future__ import annotations

from metasched.core.errors import MetaschedError


class SlurmError(MetaschedError):
    """Base of all errors of the Slurm edge."""


class SlurmUnavailableError(SlurmError):
    """The controller does not answer, or Slurm's commands are not there."""


class SlurmTimeoutError(SlurmUnavailableError):
    """A command did not end within its time; whether it took effect is not known."""


class SlurmTooOldError(SlurmError):
    """A release of Slurm that metasched does not work with."""

    def __init__(self, found: tuple[int, ...], oldest: tuple[int, ...]) -> None:
        names = [f"{major}.{minor:02}" for major, minor, *_ in (found, oldest)]
        super().__init__(f"Slurm {names[0]} is too old: metasched needs {names[1]} or later, here and for slurmctld")


class NoSuchJobError(SlurmError):
    """Slurm does not know the job (any more)."""


class WrongJobStateError(SlurmError):
    """The job is not in a state in which that can be done to it."""


class SlurmPermissionError(SlurmError):
    """Slurm refuses us."""


class SlurmCommandError(SlurmError):
    """Slurm refuses for any other reason, in its own words."""


class MalformedOutputError(SlurmError):
    """Slurm's answer has another form than it should.

    Attributes:
        record: what the answer is about ("job 12", "node n1", a command).
        field: the field that could not be read, "" for the whole.
    """

    def __init__(self, record: str, field: str, detail: str) -> None:
        self.record, self.field = record, field
        super().__init__(f"{record}: {field + ': ' if field else ''}{detail}")


class InvalidArgumentError(SlurmError, ValueError):
    """An argument that must not be put on a Slurm command line."""


class TagError(MetaschedError):
    """A job's tag, or what the tag asks of this job, is wrong; the message is for the job's owner."""
