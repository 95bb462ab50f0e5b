"""Messages: one for many events of one destination."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import structlog
from msgspec import Struct

from metasched.notify.rules import Destination
from metasched.notify.templates import (
    DEFAULT_SUBJECT,
    DEFAULT_TEMPLATE,
    BrokenTemplateError,
    EventText,
    render_subject,
    render_text,
)
from metasched.presentation.formatting import clean, clock, text_fields
from metasched.store import JobEventRecord

log = structlog.get_logger()

SHOWN_EVENTS = 30
"""Most events of a message that are told one by one; the others are counted."""
_NAME_CHARACTERS = 100
_TEXT_CHARACTERS = 500
_NOTED_KINDS = 6


class Message(Struct, frozen=True):
    """A message as it is delivered, at each try alike.

    Attributes:
        id: the same at each try, so that a receiver can drop what comes twice.
        user: whom the message is for; "" where the destination is not by user.
        subject: one line.
        text: the rendered template.
        count: number of events.
        events: the first ``SHOWN_EVENTS`` of them, as a webhook gets them.
        made: unix seconds.
        tries: deliveries that failed so far.
        not_before: unix seconds of the next try.
    """

    id: str
    user: str
    subject: str
    text: str
    count: int
    events: list[dict[str, str | float]]
    made: float
    tries: int = 0
    not_before: float = 0.0


def make_message(destination: Destination, user: str, records: Sequence[JobEventRecord], now: float) -> Message:
    """Make one message of the events; a template that fails on them is logged, and the default takes its place."""
    texts = [_event_text(record) for record in records[:SHOWN_EVENTS]]
    summary = _summary(records, texts)
    more = len(records) - len(texts)
    try:
        subject = render_subject(destination.subject, texts, summary, more)
        text = render_text(destination.template, texts, summary, more)
    except BrokenTemplateError as error:
        log.error("template_failed", destination=destination.name, error=str(error))  # noqa: TRY400  no traceback
        subject = render_subject(DEFAULT_SUBJECT, texts, summary, more)
        text = render_text(DEFAULT_TEMPLATE, texts, summary, more)
    first, last = records[0].event, records[-1].event
    identity = f"{destination.name}\0{user}\0{first.id}\0{first.at}\0{last.id}\0{last.at}"
    return Message(
        id=hashlib.sha256(identity.encode()).hexdigest()[:32],
        user=user,
        subject=subject,
        text=text,
        count=len(records),
        events=[{name: getattr(event, name) for name in EventText.__slots__} for event in texts],
        made=now,
    )


def _event_text(record: JobEventRecord) -> EventText:
    event = record.event
    return EventText(
        when=clock(event.at),
        at=event.at,
        kind=event.kind,
        text=clean(text_fields(event.text)["text"], _TEXT_CHARACTERS),
        job=clean(record.slurm_job_id or "", _NAME_CHARACTERS),
        name=clean(record.name or "", _NAME_CHARACTERS),
        user=clean(record.user or "", _NAME_CHARACTERS),
        account=clean(record.account or "", _NAME_CHARACTERS),
        state=clean(record.end_state or "", _NAME_CHARACTERS),
    )


def _summary(records: Sequence[JobEventRecord], texts: Sequence[EventText]) -> str:
    """``finished: job 12 (train)`` for one event, ``30 preempted, 2 finished`` for more."""
    if len(records) == 1:
        only = texts[0]
        return f"{only.kind}: job {only.job} ({only.name})" if only.job else f"{only.kind}: {only.text}"
    counts = Counter(record.event.kind for record in records).most_common()
    named = [f"{count} {kind}" for kind, count in counts[:_NOTED_KINDS]]
    rest = sum(count for _, count in counts[_NOTED_KINDS:])
    return ", ".join([*named, *([f"{rest} others"] if rest else [])])
