"""The contract between the engine and a policy, and the registry that finds policies by name."""

from __future__ import annotations

import importlib.metadata
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from metasched.core.errors import MetaschedError
from metasched.core.model import Decision, Snapshot
from metasched.core.validation_messages import nearest

ENTRY_POINT_GROUP = "metasched.policies"

log = logging.getLogger(__name__)


class PolicyParameters(BaseModel):
    """Base of a policy's parameters: the keys of ``[policy.parameters]`` in the configuration file.

    Types are strict. A field that is a tuple needs ``Field(strict=False)``, since files have lists only. Numbers must
    be finite, since parameters are stored as JSON. The docstring below a field is its meaning in `metasched policies`.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @property
    def gpu_types(self) -> frozenset[str]:
        """The GPU types that the parameters name."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class PolicyState:
    """A policy's state between rounds, committed to the store together with the decision.

    Attributes:
        version: version of the layout of ``data``; a policy that does not know it begins with ``initial_state``.
        data: JSON-compatible data.
    """

    version: int = 1
    data: Mapping[str, Any] = field(default_factory=dict)


class Policy(ABC):
    """Base of all policies: a policy decides, round by round, which jobs run and on how many GPUs.

    A policy is pure: the same snapshot and state give the same decision. It reads no clock, no file and no global
    random state. Its instance holds nothing but ``parameters``.

    Attributes:
        name: name of the policy in the configuration, and of its entry point.
        Parameters: the class of its parameters.
        wakes_on_arrival: whether the arrival of a job starts a round at once.
        wakes_on_completion: whether the end of a job starts a round at once.
        steady: whether only arrivals, completions and changes of nodes change the policy's decisions. Other rounds then
            repeat the last decision, and a simulation does not update service and progress for them.
        precompute_at: the fraction of a round after which the daemon begins ``precompute``, with the newest snapshot; 0
            for at once, with the snapshot of the round. With 1 or more it would never begin.
        wakes_on_result: whether the result of ``precompute`` starts a round at once.
        fits_iterations: whether the policy reads ``Job.iteration_parameters``, which cost milliseconds for each job
            whose iterations have changed.
        reads_losses: whether the policy reads ``Job.losses`` also of jobs that are in no app.
        reads_apps: whether the policy reads ``Snapshot.apps``, and so every job is in an app, be it an app of one.
    """

    name: ClassVar[str]
    Parameters: ClassVar[type[PolicyParameters]] = PolicyParameters
    wakes_on_arrival: ClassVar[bool] = True
    wakes_on_completion: ClassVar[bool] = True
    steady: ClassVar[bool] = False
    precompute_at: ClassVar[float] = 0.0
    wakes_on_result: ClassVar[bool] = False
    fits_iterations: ClassVar[bool] = False
    reads_losses: ClassVar[bool] = False
    reads_apps: ClassVar[bool] = False

    @property
    def wakes_on_batch(self) -> bool:
        """Whether a batch size that a training script has changed by a rule of its own starts a round at once."""
        return False

    @property
    def solves_in_background(self) -> bool:
        """Whether the daemon may call ``precompute`` between rounds, in a process of its own."""
        return False

    def precomputes(self, snapshot: Snapshot) -> bool:
        """Whether the daemon is to call ``precompute`` after a round with this snapshot, if it may.

        With False, ``Snapshot.precomputed`` of the round is None, and ``decide`` computes everything itself.
        """
        del snapshot
        return True

    def __init__(self, parameters: PolicyParameters | None = None) -> None:
        self.parameters = parameters if parameters is not None else self.Parameters()

    def initial_state(self, snapshot: Snapshot) -> PolicyState:
        """The state for the first round, made from the history that the jobs of the snapshot carry."""
        del snapshot
        return PolicyState()

    @abstractmethod
    def decide(self, snapshot: Snapshot, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Decide one round.

        Every job of the snapshot may start (the engine hides blocked jobs), and must be in exactly one of
        ``grants``, ``fallback`` and ``waits`` of the answer. A pinned job
        (``retention.is_pinned``) must be granted what it holds.
        """

    def precompute(self, snapshot: Snapshot, state: PolicyState) -> Mapping[str, Any] | None:
        """Compute, from the latest round's snapshot and state, a result that takes too long for a round.

        The method is as pure as ``decide``. Where ``solves_in_background`` is set and ``precomputes`` agrees, the
        daemon calls it in a process of its own and puts the result into a later round's ``Snapshot.precomputed``.
        Elsewhere ``precomputed`` is None, and ``decide`` computes the same result itself.

        Returns:
            JSON-compatible data; None where there is nothing to compute.
        """
        del snapshot, state
        return None


class UnknownPolicyError(MetaschedError):
    """A policy's name is not known; the message names the nearest known one."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"no policy is named {name!r}{nearest(name, list(known))}")


class DuplicatePolicyError(MetaschedError):
    """Two policies are registered under one name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"policy {name!r} is registered twice")


class Registry:
    """The known policies by name; every name is registered once.

    Args:
        entry_points: of further policies, which are imported when they are asked for.
    """

    def __init__(self, entry_points: Iterable[EntryPoint] = ()) -> None:
        self._policies: dict[str, type[Policy]] = {}
        self._entry_points = sorted(entry_points, key=lambda one: one.name)  # not imported yet

    def register(self, policy: type[Policy]) -> None:
        """Add a policy under its name.

        Raises:
            DuplicatePolicyError: another policy has the same name.
        """
        self._import_named(policy.name)
        if self._policies.setdefault(policy.name, policy) is not policy:
            raise DuplicatePolicyError(policy.name)

    def names(self) -> list[str]:
        """The names of the registered policies, sorted."""
        self._import(self._entry_points)
        return sorted(self._policies)

    def get(self, name: str) -> type[Policy]:
        """The policy that is registered under a name.

        Raises:
            UnknownPolicyError: no policy has that name.
        """
        self._import_named(name)
        if name not in self._policies:  # a plug-in may name its entry point otherwise than its policy
            self._import(self._entry_points)
        try:
            return self._policies[name]
        except KeyError:
            raise UnknownPolicyError(name, self._policies) from None

    def _import_named(self, name: str) -> None:
        self._import([one for one in self._entry_points if one.name == name])

    def _import(self, entry_points: Sequence[EntryPoint]) -> None:
        """Import and register policies; what cannot be imported is logged and skipped."""
        self._entry_points = [one for one in self._entry_points if one not in entry_points]
        for one in entry_points:
            try:
                self.register(one.load())
            except Exception:  # third-party code may raise anything while it is imported
                log.exception("policy plug-in %s (%s) is broken and was skipped", one.name, one.value)


def installed_policies() -> Registry:
    """The policies of all installed packages, found by their entry points.

    A policy is imported, with the libraries that it needs, when it is asked for by name, or when all names are. A
    plug-in that cannot be imported is logged and skipped; it does not stop the daemon.
    """
    return Registry(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))
