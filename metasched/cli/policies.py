"""`metasched policies`: the names for key `name` of section [policy], with their parameters."""

from __future__ import annotations

import inspect
from typing import Any

import click

from metasched.cli.json_output import echo_json, json_option
from metasched.configuration.field_docs import meaning
from metasched.core.policy import Policy, installed_policies


@click.command("policies", short_help="List the policies and their parameters.")
@json_option
def command(*, as_json: bool) -> None:
    """List the installed policies with their parameters and defaults."""
    registry = installed_policies()
    described = [describe(registry.get(name)) for name in registry.names()]
    if as_json:
        echo_json("policies", described)
        return
    from rich.text import Text  # noqa: PLC0415  --json needs no rich

    from metasched.cli.tables import console, row, table  # noqa: PLC0415

    out = console()
    for policy in described:
        out.print(Text.assemble((policy["name"], "bold"), f": {policy['summary']}"))
        if policy["parameters"]:
            made = table("  PARAMETER", "DEFAULT", "MEANING")
            for name, parameter in policy["parameters"].items():
                row(made, f"  {name}", parameter["default"], parameter["meaning"])
            out.print(made)
        out.print()


def describe(policy: type[Policy]) -> dict[str, Any]:
    """Return a policy's name, first sentence, and parameters with default and meaning (from the docstring)."""
    parameters = {
        name: {"default": _default(field.get_default(call_default_factory=True)), "meaning": meaning(field)}
        for name, field in policy.Parameters.model_fields.items()
    }
    summary = (inspect.getdoc(policy) or "").split("\n\n")[0].replace("\n", " ")
    return {"name": policy.name, "summary": summary, "parameters": parameters}


def _default(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
