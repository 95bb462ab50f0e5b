"""The configuration file: TOML, read into a frozen and fully checked record.

A new key is a field here with a docstring below it, from which its explanation in the template of `metasched init` is
made, and a row in docs/admin/CONFIG.md. A key that a reload cannot apply is also an entry of
``FIXED`` in daemon/process.py.
"""

from __future__ import annotations

import re
import tomllib
import typing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from metasched.core.errors import MetaschedError
from metasched.core.policy import PolicyParameters, Registry, UnknownPolicyError
from metasched.core.policy_text import PolicyTextError, parse_policy
from metasched.core.validation_messages import explain
from metasched.metrics.endpoint import parse_address
from metasched.throughput.throughput_table import TableError, ThroughputTable

Seconds = Annotated[float, Field(gt=0, lt=1e9)]
EXIT_CODES = range(1, 126)  # shells use 126 and above
_SecondsOrZero = Annotated[float, Field(ge=0, lt=1e9)]
_Days = Annotated[float, Field(ge=0, lt=1e6)]
_Names = Annotated[tuple[str, ...], Field(strict=False)]  # TOML has lists


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


_AbsolutePath = Annotated[Path, Field(strict=False), AfterValidator(_absolute)]


class ConfigError(MetaschedError):
    """The configuration cannot be used; the message names the file, each wrong key and the fix."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join([f"{path}:", *(f"  {problem}" for problem in problems)]))


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Paths(_Section):
    """Directories of the daemon."""

    state: _AbsolutePath
    """Directory on the daemon host's local disk, for the database (SQLite is not safe on NFS, Lustre or GPFS)."""
    shared: _AbsolutePath
    """Directory that every compute node sees, for mailbox and reports."""


class IntakeLimit(_Section):
    """Limits on what each of some users may ask of metasched. A pattern may have ``*``, ``?`` and ``[...]``."""

    users: _Names = ("*",)
    """Patterns of user names; the limit is for jobs of these users, for each user apart."""
    accounts: _Names = ("*",)
    """Patterns of Slurm accounts; the limit is for jobs of these accounts."""
    qos: _Names = ("*",)
    """Patterns of QOS, whose case does not matter; the limit is for jobs of these QOS."""
    non_preemptible_gpus: Annotated[int, Field(ge=0)] | None = None
    """Most GPUs that the user's jobs with ``preempt=no`` hold at once; 0 for none."""
    live_jobs: Annotated[int, Field(ge=1)] | None = None
    """Most jobs of the user that are taken in and have not ended."""
    array_tasks: Annotated[int, Field(ge=1)] | None = None
    """Most tasks of one array that have not ended; a larger array is not taken in."""

    @model_validator(mode="after")
    def _limits_something(self) -> IntakeLimit:
        if (self.non_preemptible_gpus, self.live_jobs, self.array_tasks) == (None, None, None):
            raise ValueError("limits nothing: give it non_preemptible_gpus, live_jobs or array_tasks")
        return self

    def covers(self, user: str, account: str, qos: str) -> bool:
        """Whether the limit is for jobs of a user with an account and a QOS."""
        return (
            any(fnmatchcase(user, pattern) for pattern in self.users)
            and any(fnmatchcase(account, pattern) for pattern in self.accounts)
            and any(fnmatchcase(qos.lower(), pattern.lower()) for pattern in self.qos)
        )


class Intake(_Section):
    """Jobs that metasched schedules in addition to those whose comment begins with ``metasched``, and limits on all."""

    partitions: _Names = ()
    """metasched schedules every job of these partitions."""
    qos: _Names = ()
    """metasched schedules every job of these QOS."""
    live_jobs: Annotated[int, Field(ge=1)] = 1000
    """Most live jobs of one user that are taken in; further ones wait in Slurm's queue until others end."""
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5
    """Time of one poll after which it records no further new jobs; the next polls do."""
    limits: Annotated[tuple[IntakeLimit, ...], Field(strict=False)] = ()
    """Tables ``[[intake.limits]]`` with other limits for some users, accounts or QOS, or for all. Of the tables that
    cover a job, the first one with a key decides on that key.
    """

    def live_jobs_of(self, user: str, account: str, qos: str) -> int:
        """The most live jobs of a user, as they count for a job of that account and QOS."""
        limit = self._limit("live_jobs", user, account, qos)
        return self.live_jobs if limit is None else limit

    def array_tasks_of(self, user: str, account: str, qos: str) -> int | None:
        """The most tasks of an array; None for no limit."""
        return self._limit("array_tasks", user, account, qos)

    def non_preemptible_gpus_of(self, user: str, account: str, qos: str) -> int | None:
        """The most GPUs of a user's jobs with ``preempt=no`` together; None for no limit."""
        return self._limit("non_preemptible_gpus", user, account, qos)

    def _limit(self, key: str, user: str, account: str, qos: str) -> int | None:
        values = (getattr(limit, key) for limit in self.limits if limit.covers(user, account, qos))
        return next((value for value in values if value is not None), None)


class SlurmOptions(_Section):
    """Access to Slurm's controller."""

    client: Literal["auto", "cli", "pyslurm"] = "auto"
    """``cli`` for Slurm's commands, ``pyslurm`` for writes by pyslurm, ``auto`` for pyslurm where it works."""
    timeout_seconds: Seconds = 15.0
    """Longest wait for one command."""
    signal: Literal["SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT", "SIGHUP"] = "SIGUSR2"
    """Signal that asks a trainer to checkpoint and stop (NCCL uses SIGUSR1)."""
    exit_code: Annotated[int, Field(ge=EXIT_CODES[0], le=EXIT_CODES[-1])] = 85
    """Exit code of a trainer that has checkpointed; best listed in Slurm's RequeueExitHold."""
    settle_seconds: _SecondsOrZero = 6.0
    """Time from an outage of the controller until the daemon acts again."""


class Schedule(_Section):
    """Times of rounds, polls and actions."""

    round_seconds: Seconds = 360.0
    """Time between decisions."""
    min_round_seconds: Seconds = 10.0
    """Shortest time between decisions, where an arrival or completion brings a round forward."""
    poll_seconds: Seconds = 2.0
    """Time between polls of Slurm."""
    busy_poll_seconds: Seconds = 0.05
    """Time between polls while runs are being stopped or started; at least what a poll takes."""
    grace_seconds: Seconds = 120.0
    """Time that a trainer has to checkpoint before the daemon requeues its job."""
    start_seconds: Seconds = 60.0
    """Time for Slurm to start a released job, beyond the grace of the jobs that it replaces."""
    slice_seconds: Seconds = 60.0
    """Length of a time slice where two jobs alternate on a GPU."""
    launch_tries: Annotated[int, Field(ge=1, le=1000)] = 6
    """Runs in a row that may end before their trainer has started, until the job fails."""


class Sharing(_Section):
    """Two jobs on one GPU, where Slurm is set up for it."""

    enabled: bool = True
    """Whether two jobs may share a GPU."""
    untried_part: Annotated[float, Field(ge=0, le=1)] = 0.6
    """Assumed fraction of its speed alone that a job keeps with a co-runner, until a measurement, or an estimate from
    measurements of other jobs, replaces it. A higher value lets policies that ask for a gain try a pair sooner.
    """
    reference_table: str = ""
    """Absolute path of a file with co-located speeds of models, measured in advance, for these estimates; empty for
    none.
    """
    _table: ThroughputTable | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _read_table(self) -> Sharing:
        if self.reference_table:
            try:
                self._table = ThroughputTable.read(_absolute(Path(self.reference_table)))
            except (TableError, ValueError) as error:
                raise ValueError(f"reference_table: {error}") from None
        return self

    @property
    def table(self) -> ThroughputTable | None:
        """The reference table as it was when the configuration was read; None without a file."""
        return self._table


class AccountingOptions(_Section):
    """Use of Slurm's associations and QOS: fair shares of accounts, and limits on GPUs and running jobs."""

    refresh_seconds: _SecondsOrZero = 60.0
    """Time between reads of them; 0 for never, and then they are ignored."""


class PolicyChoice(_Section):
    """The policy and its parameters."""

    name: str = "las"
    """Name of the policy, one of those that ``metasched policies`` lists."""
    parameters: PolicyParameters = Field(default_factory=PolicyParameters)
    """Parameters of the policy; see docs/researcher/policies/."""


class History(_Section):
    """Retention of records in the database."""

    days: _Days = 90.0
    """Days to keep details of what is over: rounds with snapshots and decisions, actions, events, and reports, which
    simulations of past jobs use; 0 for ever.
    """
    reports_days: _Days = 7.0
    """Days to keep the report files of a job that has ended, in the shared directory; 0 for ever."""
    jobs_days: _Days = 730.0
    """Days to keep a job that has ended, and its runs, from which predictions for recurring jobs are made; 0 for ever.
    """
    speeds_days: _Days = 730.0
    """Days to keep a learnt speed after its last measurement; 0 for ever."""
    snapshots_bytes: Annotated[int, Field(ge=0)] = 256 * 1024 * 1024
    """Size of the rounds' newest snapshots to keep for ``metasched replay``; 0 keeps none."""

    @model_validator(mode="after")
    def _jobs_outlast_reports(self) -> History:
        if self.jobs_days and not 0 < self.reports_days <= self.jobs_days:
            raise ValueError("reports_days must be at most jobs_days: the files are removed while their job is known")
        return self


class Access(_Section):
    """The users who may see all jobs whole. Everybody sees own jobs whole, and of others what Slurm lets users see."""

    admins: _Names = ()
    """Names of Unix users."""
    admin_groups: _Names = ()
    """Names of Unix groups."""


class ForecastOptions(_Section):
    """Forecasts of the start and the end of each job, by simulations in a process of the lowest priority."""

    enabled: bool = True
    """Whether forecasts are made; they need the snapshots that ``[history] snapshots_bytes`` keeps."""
    pause_seconds: Seconds = 60.0
    """Least time between two forecasts."""
    cpu_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Most part of one CPU that forecasts take in the mean; the pauses between them follow from that."""
    samples: Annotated[int, Field(ge=5, le=1000)] = 20
    """Simulations of a forecast."""
    jobs: Annotated[int, Field(ge=1, le=100_000)] = 300
    """Most live jobs that are simulated, those nearest to their start."""
    horizon_seconds: Seconds = 7 * 86400.0
    """How far into the future the simulations reach."""


class Shadow(_Section):
    """Policies that decide on the same snapshots as the live policy, and whose decisions are only recorded."""

    policies: _Names = ()
    """Names of policies, with parameters where needed as in ``las:promote_knob=3``; empty for none."""
    pause_seconds: Seconds = 60.0
    """Least time between two rounds that they decide."""
    cpu_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Most part of one CPU that they take in the mean."""
    jobs: Annotated[int, Field(ge=1, le=100_000)] = 300
    """Most live jobs of the simulations that estimate completion times and fairness."""


class Standby(_Section):
    """Copies of the database, for a daemon on another host that takes over."""

    copy_seconds: _SecondsOrZero = 60.0
    """Time between copies of the database into the shared directory; 0 for none."""


def _absolute_text(value: str) -> str:
    return str(_absolute(Path(value)))


def _absolute_or_empty(value: str) -> str:
    return value and _absolute_text(value)


def _path_of_site(value: str) -> str:
    if value and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", value):
        raise ValueError('must be "" or a path such as "/metasched", without a slash at its end')
    return value


def _header_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9-]+", value):
        raise ValueError("must be the name of an HTTP header, such as X-Remote-User")
    return value


def _origin(value: str) -> str:
    if not re.fullmatch(r"'self'|https?://[A-Za-z0-9.*:\[\]-]+", value):
        raise ValueError("must be an origin such as https://ondemand.example.org, or 'self' in single quotes")
    return value


def _permissions(value: str) -> str:
    if not re.fullmatch(r"0?[0-7]{3}", value):
        raise ValueError('must be an octal mode such as "0660"')
    return value


class WebOptions(_Section):
    """The web page, `metasched web`: a process of its own that only reads."""

    socket: Annotated[str, AfterValidator(_absolute_text)] = "/run/metasched-web/web.sock"
    """Absolute path of the Unix socket that the site's proxy connects to."""
    socket_mode: Annotated[str, AfterValidator(_permissions)] = "0660"
    """Permissions of the socket, octal; whoever may connect can name any user."""
    socket_group: str = ""
    """Unix group of the socket; empty for that of the process."""
    proxy_users: _Names = ()
    """Unix users whose processes may connect; empty for all whom the socket's permissions admit."""
    user_header: Annotated[str, AfterValidator(_header_name)] = "X-Remote-User"
    """HTTP header in which the proxy names the user; believed over the Unix socket alone."""
    root_path: Annotated[str, AfterValidator(_path_of_site)] = ""
    """Path below which the proxy shows the page, such as ``/metasched``; empty for the top."""
    frame_ancestors: Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], Field(strict=False)] = ()
    """Origins that may show the page in a frame."""
    coordinators: dict[str, _Names] = Field(default_factory=dict)
    """Table of Slurm accounts, each with the list of users who coordinate it."""
    state: Annotated[str, AfterValidator(_absolute_text)] = "/var/lib/metasched-web"
    """Absolute path of the page's own directory, for the results of what-ifs."""
    comparisons: Annotated[str, AfterValidator(_absolute_or_empty)] = ""
    """Absolute path of a directory with results of `metasched compare`, shown to all; empty for none."""


def _address(text: str) -> str:
    if text:
        parse_address(text)
    return text


class Metrics(_Section):
    """Metrics for Prometheus."""

    file: bool = True
    """Whether the daemon writes them into the shared directory, as ``metrics.prom``."""
    listen: Annotated[str, AfterValidator(_address)] = ""
    """Host and port at which the daemon serves that file, such as ``127.0.0.1:9410``; empty for none. Users who can
    reach the port can read accounts' use of the cluster.
    """


class Log(_Section):
    """The daemon's log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity that is logged."""
    format: Literal["console", "json"] = "console"
    """``console`` for people, ``json`` for machines."""


class Config(_Section):
    """The whole configuration file, one field a section."""

    paths: Paths
    intake: Intake = Intake()
    slurm: SlurmOptions = SlurmOptions()
    schedule: Schedule = Schedule()
    sharing: Sharing = Sharing()
    accounting: AccountingOptions = AccountingOptions()
    policy: PolicyChoice = PolicyChoice()
    history: History = History()
    access: Access = Access()
    forecast: ForecastOptions = ForecastOptions()
    shadow: Shadow = Shadow()
    standby: Standby = Standby()
    web: WebOptions = WebOptions()
    metrics: Metrics = Metrics()
    log: Log = Log()

    @property
    def outage_seconds(self) -> float:
        """Seconds from a command that Slurm did not answer until the daemon acts again."""
        return self.schedule.poll_seconds + self.slurm.settle_seconds


def load(path: Path, registry: Registry | None) -> Config:
    """Read and check a configuration file.

    Args:
        path: of the file.
        registry: the installed policies; None for a process that decides nothing, which needs no policy's parameters.

    Raises:
        ConfigError: the file cannot be read, or has problems; the message has all of them.
    """
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise ConfigError(path, [f"cannot be read: {error.strerror}; pass another with --config"]) from None
    except (ValueError, RecursionError) as error:  # syntax errors, bytes that are not UTF-8, endless digits or nesting
        raise ConfigError(path, [f"is not TOML: {error}"]) from None
    problems: list[str] = []
    parameters = _take_parameters(data, registry, problems)
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        problems += explain(error, Config)
        raise ConfigError(path, problems) from None
    if registry is not None:
        problems += _shadow_problems(config.shadow, registry)
    if problems:
        raise ConfigError(path, problems)
    return config.model_copy(update={"policy": PolicyChoice(name=config.policy.name, parameters=parameters)})


def _take_parameters(data: dict[str, Any], registry: Registry | None, problems: list[str]) -> PolicyParameters:
    """Check ``[policy.parameters]`` against the chosen policy, and take it out of ``data``."""
    section = data.get("policy")
    raw: object = section.pop("parameters", {}) if isinstance(section, dict) else {}
    name = section.get("name", PolicyChoice().name) if isinstance(section, dict) else PolicyChoice().name
    if registry is None or not isinstance(name, str):
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


def _shadow_problems(shadow: Shadow, registry: Registry) -> list[str]:
    """Return what is wrong with the names and parameters of shadow policies, a line for each policy."""
    problems = []
    for number, text in enumerate(shadow.policies):
        try:
            parse_policy(text, registry)
        except PolicyTextError as error:
            problems.append(f"[shadow] policies[{number}]: {error}")
    if len(set(shadow.policies)) < len(shadow.policies):
        problems.append("[shadow] policies: a policy stands there twice; name each once")
    return problems


class Change(NamedTuple):
    """A configuration key whose value differs between two configurations."""

    section: str
    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"[{self.section}] {self.key}: {self.old} -> {self.new}"


def differences(old: Config, new: Config) -> list[Change]:
    """The keys that a reload would change, in the order of the file."""
    changes = []
    for section in Config.model_fields:
        before, after = getattr(old, section), getattr(new, section)
        for key in typing.cast("type[BaseModel]", type(before)).model_fields:
            a, b = getattr(before, key), getattr(after, key)
            if a != b:
                changes.append(Change(section, key, a, b))
    return changes
