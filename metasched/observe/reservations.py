"""Whose jobs may start on which node, by Slurm's reservations: those that hold now, and those to come. Pure."""

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

    Args:
        listed: as Slurm tells them.
        now: unix seconds.
    """

    def __init__(self, listed: Iterable[Reservation] = (), now: float = 0.0) -> None:
        self._now = now
        self._known = {one.name: one for one in listed if one.end > now}
        on: dict[str, list[Reservation]] = {}
        for one in sorted(self._known.values(), key=lambda one: (-_rank(one), one.name)):
            for node in one.nodes:
                on.setdefault(node, []).append(one)
        self._ruling = {node: holding[0] for node, there in on.items() if (holding := [*filter(self._holds, there)])}
        self._open = {node: self._seconds(self._ruling.get(node), there) for node, there in on.items()}
        self._closings = sorted({seconds for seconds in self._open.values() if seconds is not None})

    def on(self, node: Node, asked: Collection[str], *, reserved: bool) -> Node:
        """The node, as far as it is open.

        Args:
            node: without regard to reservations.
            asked: what our jobs ask for, as in ``asked_by``: a node that is reserved for others accepts none of them.
            reserved: whether Slurm says that it is reserved now; where it is not known for whom, it accepts none.
        """
        ruling, seconds = self._ruling.get(node.name), self._open.get(node.name)
        if ruling is not None:
            wanted = any(ruling.name in names.split(",") for names in asked)
            return replace(node, accepts=node.accepts and wanted, reservation=ruling.name, open_seconds=seconds)
        if reserved or seconds is not None:
            return replace(node, accepts=node.accepts and not reserved, open_seconds=seconds)
        return node

    def asked_by(self, job: SlurmJob) -> str:
        """The reservations whose nodes it may use now; an empty one among them means nodes that are not reserved."""
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
        """Why none of the reservations that it asks for lets it start now; None if it may start."""
        if not job.reservation:
            return None
        reasons = [self._why(name, job.user) for name in job.reservation.split(",")]
        if None in reasons:
            return None
        first, *others = (reason for reason in reasons if reason is not None)
        return first.and_also(*others)

    def open_seconds(self, limit: float | None) -> float:
        """How long a node must be open to a job of that time limit (seconds; None for no limit).

        Jobs for which the same nodes are open long enough get the same answer; 0.0 if those are all.
        """
        outlasted = len(self._closings) if limit is None else bisect_left(self._closings, limit)
        if not outlasted:
            return 0.0
        return self._closings[outlasted] if outlasted < len(self._closings) else inf

    def _holds(self, one: Reservation) -> bool:
        return one.start <= self._now

    def _why(self, name: str, user: str) -> Reason | None:
        one = self._known.get(name)
        if one is None:
            return Reason.of(Code.RESERVATION_OVER, reservation=name)
        if not self._holds(one) and "FLEX" not in one.flags:
            return Reason.of(Code.RESERVATION_NOT_BEGUN, reservation=name)
        if user in one.barred_users or (one.users and user not in one.users):
            return Reason.of(Code.RESERVATION_DENIES_USER, reservation=name, user=user)
        return None

    def _seconds(self, ruling: Reservation | None, there: Iterable[Reservation]) -> float | None:
        """How long a job that starts now may last on a node."""
        later = [one.start - self._now for one in there if not self._holds(one) and _ends(one, ruling)]
        return min(later, default=None)


def _rank(one: Reservation) -> int:
    """Where several hold on a node, Slurm starts there the jobs of the one with the highest rank."""
    return 2 if "MAINT" in one.flags else 1 if "OVERLAP" in one.flags else 0


def _ends(one: Reservation, ruling: Reservation | None) -> bool:
    """Whether jobs that may use a node now must have left it when another reservation begins there."""
    return ruling is None or _rank(ruling) == 0 or _rank(one) > _rank(ruling)
