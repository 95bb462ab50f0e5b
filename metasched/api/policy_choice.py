"""A policy as callers of the API name it: as on the command line, or as its class."""

from __future__ import annotations

from typing import Any

from metasched.core.policy import Policy, Registry, installed_policies
from metasched.core.policy_text import parse_parameters

PolicyChoice = str | type[Policy]
"""``NAME`` or ``NAME:KEY=VALUE,...`` of an installed policy, or a class, with its default parameters."""


def resolve(choice: PolicyChoice, registry: Registry | None = None) -> tuple[str, dict[str, Any], Registry]:
    """Return the policy's name, its parameters, and the registry that knows the policy.

    Args:
        choice: the policy.
        registry: known policies, to which the class is added; None for those that are installed.

    Raises:
        PolicyTextError: no installed policy has that name, or the policy refuses a parameter.
        DuplicatePolicyError: another known policy has the name of the class.
    """
    known = registry or installed_policies()
    if isinstance(choice, str):
        return *parse_parameters(choice, known), known
    known.register(choice)
    return choice.name, {}, known


def label(choice: PolicyChoice) -> str:
    """Return the policy as the caller wrote it, or the name of the class."""
    return choice if isinstance(choice, str) else choice.name
