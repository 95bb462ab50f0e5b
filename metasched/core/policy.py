"""The contract between the engine and a policy, and the registry that finds policies by name."""

from __future__ import annotations

import importlib.metadata
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from metasched.core.errors import MetaschedError
from metasched.core.model import Decision, Snapshot
from metasched.core.validation_errors import nearest

ENTRY_POINT_GROUP = "metasched.policies"

log = logging.getLogger(__name__)


class PolicyParameters(BaseModel):
    """Base of a policy's parameters: the keys of ``[policy.parameters]`` in the config file.

    Types are taken at their word (a tuple takes lists with ``Field(strict=False)``: files have no tuples). Numbers are
    finite: what is stored of them has no words for others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @property
    def gpu_types(self) -> frozenset[str]:
        """The GPU types that they name."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What a policy carries from round to round: JSON-compatible data, committed together with the decision.

    Attributes:
        version: of the layout of ``data``; a policy starts afresh from history when it does not know the version.
        data: JSON-compatible.
    """

    version: int = 1
    data: Mapping[str, Any] = field(default_factory=dict)


class Policy(ABC):
    """Decides, round by round, who runs and on how many GPUs.

    A policy is pure: the same snapshot and state give the same decision. It reads no clock, no file and no global
    random state. Its instance holds nothing but ``parameters``.
    """

    name: ClassVar[str]
    Parameters: ClassVar[type[PolicyParameters]] = PolicyParameters
    wakes_on_arrival: ClassVar[bool] = True
    wakes_on_completion: ClassVar[bool] = True
    # Nothing but arrivals, ends and nodes changes its decision, not even that a job stops: other rounds repeat it, and
    # it reads neither service nor progress, so a simulation need not bring them up to date for it.
    steady: ClassVar[bool] = False

    @property
    def solves_in_background(self) -> bool:
        """Whether it has ``work`` to be done beside the rounds."""
        return False

    def __init__(self, parameters: PolicyParameters | None = None) -> None:
        self.parameters = parameters if parameters is not None else self.Parameters()

    def initial_state(self, snapshot: Snapshot) -> PolicyState:
        """The state to begin from when there is none: made from the history that the jobs carry."""
        del snapshot
        return PolicyState()

    @abstractmethod
    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Decide one round.

        Every job of the snapshot may start (the engine keeps blocked ones to itself) and is in exactly one of
        ``grants``, ``fallback`` and ``waits`` of the answer. A pinned job
        (``retention.is_pinned``) must be granted what it holds.
        """

    def precompute(self, snapshot: Snapshot, state: PolicyState) -> Mapping[str, Any] | None:
        """Compute, from the latest round's snapshot and state, what takes too long for a round.

        The method is as pure as ``decide``. Where ``solves_in_background`` is set, the daemon calls it in a process of
        its own and puts the answer into a later round's ``Snapshot.precomputed``. Elsewhere ``precomputed`` is None,
        and ``decide`` computes the same itself.

        Returns:
            JSON-compatible data; None where nothing is to be computed.
        """
        del snapshot, state
        return None


class UnknownPolicyError(MetaschedError):
    """No policy of that name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"no policy is named {name!r}{nearest(name, list(known))}")


class DuplicatePolicyError(MetaschedError):
    """Two policies claim one name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"policy {name!r} is registered twice")


class Registry:
    """Policies by name; refuses duplicates."""

    def __init__(self) -> None:
        self._policies: dict[str, type[Policy]] = {}

    def register(self, policy: type[Policy]) -> None:
        """Add one.

        Raises:
            DuplicatePolicyError: another policy has its name.
        """
        if self._policies.setdefault(policy.name, policy) is not policy:
            raise DuplicatePolicyError(policy.name)

    def names(self) -> list[str]:
        """Known names, sorted."""
        return sorted(self._policies)

    def get(self, name: str) -> type[Policy]:
        """The policy of that name.

        Raises:
            UnknownPolicyError: there is none.
        """
        try:
            return self._policies[name]
        except KeyError:
            raise UnknownPolicyError(name, self._policies) from None


def installed_policies() -> Registry:
    """The policies of every installed package, by entry point.

    A broken plug-in is named, logged and skipped: it never takes the daemon down.
    """
    registry = Registry()
    for entry_point in sorted(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda e: e.name):
        try:
            registry.register(entry_point.load())
        except Exception:  # third-party code may raise anything while it is imported
            log.exception("policy plug-in %s (%s) is broken and was skipped", entry_point.name, entry_point.value)
    return registry
