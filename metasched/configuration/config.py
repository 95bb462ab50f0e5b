"""The configuration file: TOML in, a frozen and fully checked record out."""

from __future__ import annotations

import tomllib
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from metasched.core.errors import MetaschedError
from metasched.core.policy import PolicyParameters, Registry, UnknownPolicyError
from metasched.core.validation_errors import explain
from metasched.throughput.throughput_table import Table, TableError

Seconds = Annotated[float, Field(gt=0, lt=1e9)]
EXIT_CODES = range(1, 126)  # those that no shell gives a meaning
_FromText = Annotated[Path, Field(strict=False)]
_Names = Annotated[tuple[str, ...], Field(strict=False)]  # TOML has lists


class ConfigError(MetaschedError):
    """The configuration cannot be used; the message names the file, each wrong key and the fix."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join([f"{path}:", *(f"  {problem}" for problem in problems)]))


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Paths(_Section):
    """Where the daemon keeps its files.

    Attributes:
        state: directory on the daemon host's local disk, for the database (SQLite is not safe on NFS, Lustre or GPFS).
        shared: directory that every compute node sees, for mailbox and reports.
    """

    state: _FromText
    shared: _FromText

    @model_validator(mode="after")
    def _absolute(self) -> Paths:
        for name in ("state", "shared"):
            if not getattr(self, name).is_absolute():
                msg = f"{name} must be an absolute path"
                raise ValueError(msg)
        return self


class Intake(_Section):
    """Which jobs are ours besides those whose comment begins with ``metasched``.

    Attributes:
        partitions: every job of these partitions is ours.
        qos: every job of these QOS is ours.
    """

    partitions: _Names = ()
    qos: _Names = ()


class SlurmOptions(_Section):
    """How to talk to Slurm.

    Attributes:
        client: ``cli`` for Slurm's commands, ``pyslurm`` to write by that, ``auto`` to do so where one works.
        timeout_seconds: longest wait for one command.
        signal: what asks a trainer to checkpoint and stop (NCCL uses SIGUSR1).
        exit_code: what a trainer that has checkpointed exits with; best listed in Slurm's RequeueExitHold.
        settle_seconds: after the controller was out of reach, watch this long before acting again.
    """

    client: Literal["auto", "cli", "pyslurm"] = "auto"
    timeout_seconds: Seconds = 15.0
    signal: Literal["SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT", "SIGHUP"] = "SIGUSR2"
    exit_code: Annotated[int, Field(ge=EXIT_CODES[0], le=EXIT_CODES[-1])] = 85
    settle_seconds: Annotated[float, Field(ge=0, lt=1e9)] = 6.0


class Schedule(_Section):
    """The rhythm.

    Attributes:
        round_seconds: time between decisions.
        min_round_seconds: an arrival or completion may bring the next round forward, but no closer than this.
        poll_seconds: time between looks at Slurm.
        busy_poll_seconds: the same while runs are being stopped or started; never less than a look itself takes.
        grace_seconds: how long a trainer may take to checkpoint before its job is requeued without its consent.
        start_seconds: how long a released job may wait for Slurm to start it, beyond the grace of those it replaces.
        slice_seconds: how long each of two jobs runs that take turns on a GPU.
    """

    round_seconds: Seconds = 360.0
    min_round_seconds: Seconds = 10.0
    poll_seconds: Seconds = 2.0
    busy_poll_seconds: Seconds = 0.05
    grace_seconds: Seconds = 120.0
    start_seconds: Seconds = 60.0
    slice_seconds: Seconds = 60.0


class Sharing(_Section):
    """How two jobs share a GPU, where Slurm is set up for it.

    Attributes:
        enabled: whether they do.
        untried_part: of its speed alone, what a job is taken to keep beside one beside which it has never run. The
            higher, the sooner policies that ask for a gain try it; what is measured then takes its place, and what is
            estimated from others' measurements goes before it.
        reference_table: absolute path of a file with speeds of models beside each other, measured in advance, for these
            estimates; empty for none.
    """

    enabled: bool = True
    untried_part: Annotated[float, Field(ge=0, le=1)] = 0.6
    reference_table: str = ""
    _table: Table | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _read_table(self) -> Sharing:
        if not self.reference_table:
            return self
        path = Path(self.reference_table)
        if not path.is_absolute():
            msg = "reference_table must be an absolute path"
            raise ValueError(msg)
        try:
            self._table = Table.read(path)
        except TableError as error:
            msg = f"reference_table: {error}"
            raise ValueError(msg) from None
        return self

    @property
    def table(self) -> Table | None:
        """What the file of the reference table had when the configuration was read."""
        return self._table


class AccountingOptions(_Section):
    """What is heeded of Slurm's associations and QOS: shares of accounts, and limits on GPUs and running jobs.

    Attributes:
        refresh_seconds: time between looks at them; 0 for never, and then nothing of it is heeded.
    """

    refresh_seconds: Annotated[float, Field(ge=0, lt=1e9)] = 60.0


class PolicyChoice(_Section):
    """Which policy decides.

    Attributes:
        name: as ``metasched policies`` lists them.
        parameters: the policy's own; see docs/POLICIES.md.
    """

    name: str = "las"
    parameters: PolicyParameters = Field(default_factory=PolicyParameters)


class History(_Section):
    """What is kept of the past.

    Attributes:
        snapshots_bytes: of what the rounds saw, the newest, for ``metasched replay``; 0 keeps none.
        days: how long details are kept of what is over: rounds, with what they saw and decided, actions, events, and
            reports, also those of speeds, which simulations of past jobs use; 0 for ever.
    """

    days: Annotated[float, Field(ge=0, lt=1e6)] = 90.0
    snapshots_bytes: Annotated[int, Field(ge=0)] = 256 * 1024 * 1024


class Standby(_Section):
    """What a daemon on another host needs to take over.

    Attributes:
        copy_seconds: time between copies of the database into the shared directory; 0 for none.
    """

    copy_seconds: Annotated[float, Field(ge=0, lt=1e9)] = 60.0


class Log(_Section):
    """What the daemon logs, to standard error.

    Attributes:
        level: least severity.
        format: ``console`` for people, ``json`` for machines.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


class Config(_Section):
    """The whole file."""

    paths: Paths
    intake: Intake = Intake()
    slurm: SlurmOptions = SlurmOptions()
    schedule: Schedule = Schedule()
    sharing: Sharing = Sharing()
    accounting: AccountingOptions = AccountingOptions()
    policy: PolicyChoice = PolicyChoice()
    history: History = History()
    standby: Standby = Standby()
    log: Log = Log()

    @property
    def outage_seconds(self) -> float:
        """After a command that Slurm did not answer, until anything is done again: it has to answer and settle."""
        return self.schedule.poll_seconds + self.slurm.settle_seconds


def load(path: Path, registry: Registry) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigError: with every problem found at once.
    """
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise ConfigError(path, [f"cannot be read: {error.strerror}; pass another with --config"]) from None
    except (ValueError, RecursionError) as error:  # the reader's own, bytes that are no text, endless digits or nesting
        raise ConfigError(path, [f"is not TOML: {error}"]) from None
    problems: list[str] = []
    parameters = _take_parameters(data, registry, problems)
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        problems += explain(error, Config)
        raise ConfigError(path, problems) from None
    if problems:
        raise ConfigError(path, problems)
    return config.model_copy(update={"policy": PolicyChoice(name=config.policy.name, parameters=parameters)})


def _take_parameters(data: dict[str, Any], registry: Registry, problems: list[str]) -> PolicyParameters:
    """Check ``[policy.parameters]`` against the chosen policy, and take it out of ``data``."""
    section = data.get("policy")
    raw: object = section.pop("parameters", {}) if isinstance(section, dict) else {}
    name = section.get("name", PolicyChoice().name) if isinstance(section, dict) else PolicyChoice().name
    if not isinstance(name, str):
        return PolicyParameters()  # the wrong type is reported with the rest of the file
    try:
        policy = registry.get(name)
    except UnknownPolicyError as error:
        problems.append(f"[policy] name: {error}")
        return PolicyParameters()
    try:
        return policy.Parameters.model_validate(raw)
    except ValidationError as error:
        problems += explain(error, policy.Parameters, prefix=("policy", "parameters"))
        return PolicyParameters()


class Change(NamedTuple):
    """A value that two configurations do not agree on."""

    section: str
    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"[{self.section}] {self.key}: {self.old} -> {self.new}"


def differences(old: Config, new: Config) -> list[Change]:
    """What a reload would change, in the order of the file."""
    changes = []
    for section in Config.model_fields:
        before, after = getattr(old, section), getattr(new, section)
        for key in typing.cast("type[BaseModel]", type(before)).model_fields:
            a, b = getattr(before, key), getattr(after, key)
            if a != b:
                changes.append(Change(section, key, a, b))
    return changes
