"""Templates of messages: Jinja2 in its sandbox, checked on invented events before any real one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

DEFAULT_SUBJECT = "metasched: {{ summary }}"
DEFAULT_TEMPLATE = """\
{% for event in events -%}
{{ event.when }} {{ event.kind }}{% if event.job %} job {{ event.job }} ({{ event.name }}, {{ event.user }}){% endif %}\
: {{ event.text }}
{% endfor %}
{%- if more %}and {{ more }} more{% endif %}"""
_SUBJECT_CHARACTERS = 300
_TEXT_CHARACTERS = 16_000


@dataclass(frozen=True, slots=True)
class EventText:
    """An event as templates see it: users' words without control characters, and cut.

    Attributes:
        when: local date and time.
        at: unix seconds.
        kind: of the event.
        text: the event in words.
        job: the job's Slurm job id; "" for an event of the cluster, as the next four.
        name: the job's.
        user: the job's.
        account: the job's; "" where it has none.
        state: the state that the job ended in; "" while it lives.
    """

    when: str
    at: float
    kind: str
    text: str
    job: str = ""
    name: str = ""
    user: str = ""
    account: str = ""
    state: str = ""


class BrokenTemplateError(ValueError):
    """A template cannot be rendered; the message names the template, the line where it is known, and the problem."""


def render_subject(source: str, events: Sequence[EventText], summary: str, more: int) -> str:
    """Render a subject: one line, cut.

    Raises:
        BrokenTemplateError: the template fails on these events.
    """
    return " ".join(_render("subject", source, events, summary, more).split())[:_SUBJECT_CHARACTERS]


def render_text(source: str, events: Sequence[EventText], summary: str, more: int) -> str:
    """Render a text, cut.

    Raises:
        BrokenTemplateError: the template fails on these events.
    """
    text = _render("template", source, events, summary, more).strip()
    return text if len(text) <= _TEXT_CHARACTERS else text[: _TEXT_CHARACTERS - 1] + "…"


def check_template(key: str, source: str) -> None:
    """Render invented events, one of a job and one of the cluster.

    Raises:
        BrokenTemplateError: the template has an error, or names what events do not have.
    """
    job = EventText("2030-01-02 03:04:05", 1893553445.0, "finished", "ended", "1", "train", "ada", "lab", "FAILED")
    cluster = EventText("2030-01-02 03:04:05", 1893553445.0, "slurm_unreachable", "no answer")
    _render(key, source, [job, cluster], "2 events", 1)


def _render(key: str, source: str, events: Sequence[EventText], summary: str, more: int) -> str:
    try:
        template = _environment().from_string(source)
        return template.render(events=events, summary=summary, count=len(events) + more, more=more)
    except TemplateSyntaxError as error:
        raise BrokenTemplateError(f"{key}: line {error.lineno}: {error.message}") from None
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise BrokenTemplateError(f"{key}: {error}") from None


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    # Not HTML: messages are plain text, and Slack's own characters are escaped where messages become Slack's.
    return ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
