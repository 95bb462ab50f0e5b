"""A policy with its parameters as one text: ``NAME`` or ``NAME:KEY=VALUE,...``, on the command line and in files."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from metasched.core.errors import MetaschedError
from metasched.core.policy import Policy, Registry, UnknownPolicyError
from metasched.core.validation_messages import explain


class PolicyTextError(MetaschedError):
    """The text has another form, or names no policy, or the policy refuses a parameter."""


def parse_parameters(text: str, registry: Registry) -> tuple[str, dict[str, Any]]:
    """Return a policy's name and its checked parameters; values are JSON or plain words.

    Raises:
        PolicyTextError: the text cannot be used; the message says why.
    """
    name, _, rest = text.partition(":")
    parameters = {}
    for part in _split(rest):
        key, equals, value = part.partition("=")
        if not equals:
            raise PolicyTextError(f"{part!r} is not KEY=VALUE")
        try:
            parameters[key.strip()] = json.loads(value)
        except (ValueError, RecursionError):
            parameters[key.strip()] = value
    try:
        taken = registry.get(name).Parameters
        taken.model_validate(parameters)
    except UnknownPolicyError as error:
        raise PolicyTextError(str(error)) from None
    except ValidationError as error:
        raise PolicyTextError("; ".join(explain(error, taken, (name,)))) from None
    return name, parameters


def parse_policy(text: str, registry: Registry) -> Policy:
    """Return the policy that a text names.

    Raises:
        PolicyTextError: the text cannot be used, or the policy's own code fails; the message says why.
    """
    name, parameters = parse_parameters(text, registry)
    kind = registry.get(name)
    try:
        return kind(kind.Parameters.model_validate(parameters))
    except Exception as error:  # a policy may be third-party code
        raise PolicyTextError(f"policy {name!r} does not start ({type(error).__name__}: {error})") from error


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "[{") - (char in "]}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in parts if part]
