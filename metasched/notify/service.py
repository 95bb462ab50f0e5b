"""The process of messages: follows the events of the store, and delivers messages, each destination by itself."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from metasched.notify.channels import deliver
from metasched.notify.messages import Message, make_message
from metasched.notify.positions import Position, Positions, PositionsFile
from metasched.notify.rules import Destination
from metasched.notify.webhook import DeliveryError
from metasched.store import JobEventRecord, Store, StoreError

log = structlog.get_logger()

EVENTS_AT_ONCE = 5000
"""Most events that one look at the store reads for a destination."""
MOST_PENDING = 200
"""Undelivered messages of a destination from which its further events wait in the store."""
_RECENT = 500
_ONCE = frozenset({"arrived", "bad_tag", "finished", "gone"})  # kinds of which a job has one event
_LAST_SECONDS = 5.0
_FIRST_RETRY_SECONDS = 5.0
_LONGEST_RETRY_SECONDS = 3600.0
_MAX_DOUBLINGS = 10


class _Outcome(NamedTuple):
    destination: str
    message: Message
    error: DeliveryError | None


class NotifyService:
    """The messages of one file of destinations.

    A message is written into the file of positions before its first delivery, and removed after it: neither a restart
    nor a failure loses it. It is delivered twice only where the process dies, or the answer is lost, between the
    receiver's consent and the file; its id is the same then.

    Args:
        database: path of the daemon's store.
        destinations: where messages go.
        file: the file of positions.
        send: delivers one message, or raises DeliveryError.
        clock: unix seconds.
    """

    def __init__(
        self,
        database: Path,
        destinations: Sequence[Destination],
        file: PositionsFile,
        send: Callable[[Destination, Message], None] = deliver,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._destinations = {destination.name: destination for destination in destinations}
        self._file = file
        self._send = send
        self._clock = clock
        self._positions: Positions | None = None
        self._unsaved = False
        self._waiting: dict[str, float] = {}  # by destination, since when the events of its next message wait
        self._busy: set[str] = set()  # destinations with a delivery in progress
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._problems: dict[str, str] = {}

    def run(self, proceed: Callable[[], bool]) -> None:
        """Follow and deliver while ``proceed``, which waits a little; then give deliveries in progress some seconds."""
        log.info("notify_started", destinations=sorted(self._destinations))
        while proceed():
            self.step()
        self.wait_for_deliveries(_LAST_SECONDS)
        log.info("notify_ended")

    def step(self) -> None:
        """Read new events, make messages, and start deliveries that are due. Nothing here waits for a receiver."""
        self._take_outcomes()
        try:
            with Store.open(self._database, read_only=True) as store, store.transaction():
                self._follow(store)
        except StoreError as error:
            self._report("store", str(error))
        else:
            self._report("store", "")
        self._save()
        if not self._unsaved:  # a message that is not in the file would be delivered again after a restart
            self._start_deliveries()

    def wait_for_deliveries(self, seconds: float) -> None:
        """Wait until no delivery is in progress, and take in what came of them."""
        deadline = time.monotonic() + seconds
        while self._busy and time.monotonic() < deadline:
            try:
                self._take(self._outcomes.get(timeout=max(deadline - time.monotonic(), 0.01)))
            except queue.Empty:
                break
        self._save()

    def _follow(self, store: Store) -> None:
        positions = self._positions or self._file.load() or Positions(store.term, {})
        if store.term < positions.term:  # the daemon is on another host, and so are its events
            self._report("term", "the events go on in the database of another host")
            return
        self._report("term", "")
        newest = store.latest_event()
        made = {}
        for name, destination in self._destinations.items():
            position = positions.destinations.get(name) or Position(newest, self._clock())
            if store.term > positions.term or position.after > newest:
                position = _carried_over(position, store)
            made[name] = self._extended(destination, position, store.events_after(position.after, EVENTS_AT_ONCE))
        changed = Positions(store.term, made)
        if changed != self._positions:
            self._positions, self._unsaved = changed, True

    def _extended(self, destination: Destination, position: Position, records: Sequence[JobEventRecord]) -> Position:
        """The position after some events: skipped, waiting for their digest, or part of a new message."""
        if not records:
            return position
        told = frozenset(position.earlier)
        wanted = [record for record in records if destination.wants(record) and _digest(record) not in told]
        fresh: list[Message] = []
        if wanted:
            now = self._clock()
            if now - self._waiting.setdefault(destination.name, now) < destination.digest_seconds:
                return position
            by_user: dict[str, list[JobEventRecord]] = {}
            for record in wanted:
                by_user.setdefault((record.user or "") if destination.per_user else "", []).append(record)
            most = MOST_PENDING if destination.per_user else 1  # further events join the message after
            if position.pending and len(position.pending) + len(by_user) > most:
                return position
            del self._waiting[destination.name]
            fresh = [make_message(destination, user, group, now) for user, group in by_user.items()]
        last = records[-1].event
        recent = (*position.recent, *map(_digest, records))[-_RECENT:]
        return Position(last.id, last.at, (*position.pending, *fresh), recent, position.earlier)

    def _start_deliveries(self) -> None:
        if self._positions is None:
            return
        now = self._clock()
        for name, position in self._positions.destinations.items():
            due = next((message for message in position.pending if message.not_before <= now), None)
            if name not in self._busy and due is not None:
                self._busy.add(name)
                work = (self._destinations[name], due)
                threading.Thread(target=self._deliver, args=work, name=f"notify-{name}", daemon=True).start()

    def _deliver(self, destination: Destination, message: Message) -> None:
        error = None
        try:
            self._send(destination, message)
        except DeliveryError as failed:
            error = failed
        except Exception as failed:  # Apprise's plug-ins are others' code, and one destination must not end the process
            log.exception("delivery_failed", destination=destination.name)
            error = DeliveryError(f"{type(failed).__name__}: {failed}")
        self._outcomes.put(_Outcome(destination.name, message, error))

    def _take_outcomes(self) -> None:
        while not self._outcomes.empty():
            self._take(self._outcomes.get())

    def _take(self, outcome: _Outcome) -> None:
        """Remove a delivered message; put off one that was not, the longer the more often it failed, or drop it."""
        name, message, error = outcome
        self._busy.discard(name)
        if self._positions is None:
            return
        position = self._positions.destinations[name]
        rest = tuple(pending for pending in position.pending if pending.id != message.id)
        now, destination = self._clock(), self._destinations[name]
        if error is None:
            log.info("message_delivered", destination=name, user=message.user, events=message.count)
        elif now - message.made >= destination.give_up_seconds:
            log.error("message_dropped", destination=name, user=message.user, events=message.count, error=str(error))
        else:
            seconds = _FIRST_RETRY_SECONDS * 2 ** min(message.tries, _MAX_DOUBLINGS)
            seconds = min(max(seconds, error.retry_after or 0.0), _LONGEST_RETRY_SECONDS)
            log.warning("message_put_off", destination=name, user=message.user, seconds=seconds, error=str(error))
            later = msgspec.structs.replace(message, tries=message.tries + 1, not_before=now + seconds)
            rest = (*rest, later)
        changed = msgspec.structs.replace(position, pending=rest)
        destinations = {**self._positions.destinations, name: changed}
        self._positions = msgspec.structs.replace(self._positions, destinations=destinations)
        self._unsaved = True

    def _save(self) -> None:
        if self._positions is None or not self._unsaved:
            return
        try:
            self._file.save(self._positions)
        except OSError as error:
            self._report("file", f"{self._file.path}: {error.strerror}; no message is sent until it can be written")
        else:
            self._unsaved = False
            self._report("file", "")

    def _report(self, subject: str, problem: str) -> None:
        """Log a problem once, and its end."""
        if problem != self._problems.get(subject, ""):
            self._problems[subject] = problem
            if problem:
                log.error("notify_waits", problem=problem)
            else:
                log.info("notify_continues", subject=subject)


def _carried_over(position: Position, store: Store) -> Position:
    """The position in a store whose events have other numbers: the copy that another daemon went on from.

    Such a daemon may record events again that were told, so that these are remembered by what they say.
    """
    return msgspec.structs.replace(position, after=store.latest_event(position.at), earlier=position.recent)


def _digest(record: JobEventRecord) -> str:
    event = record.event
    at = None if event.kind in _ONCE else event.at
    return hashlib.sha256(f"{event.uid}\0{event.kind}\0{event.text}\0{at}".encode()).hexdigest()[:16]
