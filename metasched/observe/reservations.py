"""Slurm's reservations: to which jobs they leave each node open, and for how long. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import replace
from math import inf

from metasched.core.model import Node
from metasched.core.reasons import Code, Reason
from metasched.slurm.client import Reservation, SlurmJob


class Reservations:
    """All reservations at one instant.

    Where several are active on a node, the one with the highest rank rules: Slurm starts only its jobs there.

    Args:
        listed: every reservation that Slurm lists.
        now: unix seconds.
    """

    def __init__(self, listed: Iterable[Reservation] = (), now: float = 0.0) -> None:
        self._now = now
        self._known = {reservation.name: reservation for reservation in listed if reservation.end > now}
        on: dict[str, list[Reservation]] = {}
        for reservation in sorted(self._known.values(), key=lambda known: (-_rank(known), known.name)):
            for node in reservation.nodes:
                on.setdefault(node, []).append(reservation)
        self._ruling = {node: active[0] for node, there in on.items() if (active := [*filter(self._holds, there)])}
        self._open = {node: self._seconds_until_reserved(self._ruling.get(node), there) for node, there in on.items()}
        self._closings = sorted({seconds for seconds in self._open.values() if seconds is not None})

    @property
    def phase(self) -> tuple[tuple[Reservation, bool], ...]:
        """Every reservation that is not over, with whether it has begun: all that jobs depend on but the seconds."""
        return tuple((one, self._holds(one)) for one in self._known.values())

    @property
    def closes_nodes(self) -> bool:
        """Whether a node is open to jobs for a limited time only, which the time shortens."""
        return bool(self._closings)

    def ruling(self, node: str) -> Reservation | None:
        """The active reservation that rules a node now; None for a node in none."""
        return self._ruling.get(node)

    def on(self, node: Node, asked: Collection[str], *, reserved: bool) -> Node:
        """Return the node as reservations restrict it: whether it accepts jobs, of which reservation, for how long.

        Args:
            node: without regard to reservations.
            asked: the jobs' reservations, as of ``asked_by``; a node of a reservation that is not asked for accepts no
                job.
            reserved: whether Slurm shows the node as reserved now; without a known reservation it accepts no job.
        """
        ruling, seconds = self._ruling.get(node.name), self._open.get(node.name)
        if ruling is not None:
            wanted = any(ruling.name in names.split(",") for names in asked)
            return replace(node, accepts=node.accepts and wanted, reservation=ruling.name, open_seconds=seconds)
        if reserved or seconds is not None:
            return replace(node, accepts=node.accepts and not reserved, open_seconds=seconds)
        return node

    def asked_by(self, job: SlurmJob) -> str:
        """Return the reservations whose nodes the job may use now, ``a,b``; "" among them: unreserved nodes."""
        if not job.reservation:
            return ""
        allowed: list[str] = []
        for name in job.reservation.split(","):
            one = self._known.get(name)
            if one is None or (self._holds(one) and one.nodes):
                allowed.append(name)
            if one is not None and (not one.nodes or "FLEX" in one.flags):
                allowed.append("")
        return ",".join(allowed) if allowed else job.reservation

    def why_waits(self, job: SlurmJob) -> Reason | None:
        """Return why no reservation that the job asks for lets it start now; None if it may start."""
        if not job.reservation:
            return None
        reasons = [self._why(name, job.user) for name in job.reservation.split(",")]
        if None in reasons:
            return None
        first, *others = (reason for reason in reasons if reason is not None)
        return first.and_also(*others)

    def open_seconds(self, limit: float | None) -> float:
        """Return the seconds for which a node must be open to a job, rounded up to the next begin of a reservation.

        So jobs for which the same nodes are open long enough have the same value; 0.0 where all nodes are.

        Args:
            limit: the job's time limit in seconds; None for no limit.
        """
        outlasted = len(self._closings) if limit is None else bisect_left(self._closings, limit)
        if not outlasted:
            return 0.0
        return self._closings[outlasted] if outlasted < len(self._closings) else inf

    def _holds(self, reservation: Reservation) -> bool:
        return reservation.start <= self._now

    def _why(self, name: str, user: str) -> Reason | None:
        one = self._known.get(name)
        if one is None:
            return Reason.of(Code.RESERVATION_OVER, reservation=name)
        if not self._holds(one) and "FLEX" not in one.flags:
            return Reason.of(Code.RESERVATION_NOT_BEGUN, reservation=name)
        if user in one.barred_users or (one.users and user not in one.users):
            return Reason.of(Code.RESERVATION_DENIES_USER, reservation=name, user=user)
        return None

    def _seconds_until_reserved(self, ruling: Reservation | None, there: Iterable[Reservation]) -> float | None:
        """Return the seconds that a job which starts now may run on a node; None for no end."""
        later = [
            upcoming.start - self._now
            for upcoming in there
            if not self._holds(upcoming) and _ends_jobs_of(upcoming, ruling)
        ]
        return min(later, default=None)


def _rank(reservation: Reservation) -> int:
    return 2 if "MAINT" in reservation.flags else 1 if "OVERLAP" in reservation.flags else 0


def _ends_jobs_of(upcoming: Reservation, ruling: Reservation | None) -> bool:
    """Whether jobs that may use a node now must have left it when an upcoming reservation begins there."""
    return ruling is None or _rank(ruling) == 0 or _rank(upcoming) > _rank(ruling)
