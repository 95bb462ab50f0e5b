"""The file of destinations, ``notify.toml``: which events become messages, and where these go.

A file of its own, because it holds secrets (addresses of webhooks, passwords of mail servers), and because an error in
it must not keep the daemon from starting.
"""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from metasched.core.errors import MetaschedError
from metasched.core.event_kinds import KINDS
from metasched.core.validation_messages import explain, nearest
from metasched.notify.templates import DEFAULT_SUBJECT, DEFAULT_TEMPLATE, check_template
from metasched.store import JobEventRecord

FILE_NAME = "notify.toml"


class RulesError(MetaschedError):
    """The file of destinations cannot be used; the message names the file, each wrong key and the fix."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        super().__init__("\n".join([f"{path}:", *(f"  {problem}" for problem in problems)]))


def _network(value: object) -> object:
    return ip_network(value) if isinstance(value, str) else value


def _pattern_of_kinds(value: str) -> str:
    if not any(fnmatchcase(kind, value) for kind in KINDS):
        raise ValueError(f"no kind of event matches {value!r}{nearest(value, list(KINDS))}")
    return value


def _http(value: str) -> str:
    try:
        parts = urlsplit(value)
    except ValueError:  # whose text quotes the value, which may hold a secret
        raise ValueError("is no URL") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None:
        raise ValueError("must be http://HOST... or https://HOST..., without a user (write [headers] Authorization)")
    return value


def _header(value: str) -> str:
    if not re.fullmatch(r"[\x20-\x7e]{1,4096}", value):
        raise ValueError("must be printable ASCII")
    return value


_Names = Annotated[tuple[str, ...], Field(strict=False)]  # TOML has lists
_Kinds = Annotated[tuple[Annotated[str, AfterValidator(_pattern_of_kinds)], ...], Field(strict=False)]
_Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]
_Url = Annotated[str, AfterValidator(_http)]
_Seconds = Annotated[float, Field(ge=0, lt=1e7)]


class Destination(BaseModel):
    """A table ``[[notify]]``: a place for messages, and the events that they are about.

    Exactly one of ``webhook``, ``slack`` and ``apprise`` says where to.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    """name of the destination, in logs; its position in the events is kept under this name."""
    webhook: _Url | None = None
    """URL that gets messages by POST, as JSON."""
    slack: _Url | None = None
    """URL of an incoming webhook of Slack, or of a service that takes the same messages."""
    apprise: str | None = None
    """URL of Apprise, such as ``mailtos://user:password@smtp.example.org?to=ops@example.org`` (extra ``notify``)."""
    kinds: _Kinds = ("*",)
    """patterns of the kinds of events, such as ``finished`` and ``policy_*``."""
    users: _Names = ("*",)
    """patterns of the users whose jobs the events are about."""
    accounts: _Names = ("*",)
    """patterns of the Slurm accounts of these jobs."""
    end_states: _Names = ("*",)
    """patterns of the states, such as ``FAILED``, that jobs of ``finished`` and ``gone`` events ended in."""
    cluster: bool = True
    """whether events of no job, such as ``slurm_unreachable``, count."""
    per_user: bool = False
    """whether each user gets messages about own jobs alone; ``{user}`` in ``apprise`` stands for the user's name."""
    digest_seconds: _Seconds = 60.0
    """time from an event to its message, in which further events join the message."""
    give_up_seconds: _Seconds = 86400.0
    """time after which a message that cannot be delivered is dropped, with an error in the log."""
    subject: str = DEFAULT_SUBJECT
    """Jinja2 template of the subject, of mails alone."""
    template: str = DEFAULT_TEMPLATE
    """Jinja2 template of the text."""
    headers: dict[str, Annotated[str, AfterValidator(_header)]] = Field(default_factory=dict)
    """HTTP headers of ``webhook``, such as ``{ Authorization = "Bearer ..." }``."""
    allow_networks: Annotated[tuple[_Network, ...], Field(strict=False)] = ()
    """networks besides the public ones that ``webhook`` and ``slack`` may lead to, such as ``10.1.0.0/16``."""

    @model_validator(mode="after")
    def _is_complete(self) -> Destination:
        if sum(url is not None for url in (self.webhook, self.slack, self.apprise)) != 1:
            raise ValueError("give exactly one of webhook, slack and apprise")
        if self.per_user and "{user}" not in (self.apprise or ""):
            raise ValueError("per_user is for apprise URLs with {user} in them, such as mailto://...?to={user}@site")
        for key in ("subject", "template"):
            check_template(key, getattr(self, key))
        return self

    def wants(self, record: JobEventRecord) -> bool:
        """Whether an event is for this destination."""
        if not _matches(record.event.kind, self.kinds):
            return False
        if record.event.uid is None:
            return self.cluster and not self.per_user
        ended = record.event.kind in {"finished", "gone"}
        return (
            _matches(record.user or "", self.users)
            and _matches(record.account or "", self.accounts)
            and (not ended or _matches(record.end_state or "", self.end_states))
        )


class Rules(BaseModel):
    """The whole file.

    Attributes:
        state: directory for the position in the events; None for ``notify/`` in the shared directory, where the
            process on another host finds the position after a failover.
        notify: the destinations.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    state: Annotated[Path, Field(strict=False)] | None = None
    notify: Annotated[tuple[Destination, ...], Field(strict=False, min_length=1)]

    @model_validator(mode="after")
    def _names_differ(self) -> Rules:
        names = [destination.name for destination in self.notify]
        if len(set(names)) < len(names):
            raise ValueError("two destinations have one name: name each differently")
        return self


def load_rules(path: Path) -> Rules:
    """Read and check the file.

    Raises:
        RulesError: the file cannot be read or has problems, among them broken templates; the message has all of them.
    """
    try:
        with path.open("rb") as file:
            return Rules.model_validate(tomllib.load(file))
    except OSError as error:
        raise RulesError(path, [f"cannot be read: {error.strerror}; pass another with --rules"]) from None
    except ValidationError as error:
        raise RulesError(path, explain(error, Rules, secret=True)) from None
    except (ValueError, RecursionError) as error:
        raise RulesError(path, [f"is not TOML: {error}"]) from None


def _matches(text: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)
