"""The first configuration file: the required keys, and every other key with its default, commented out. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from metasched.configuration.config import EXIT_CODES, Config
from metasched.configuration.field_docs import meaning
from metasched.slurm.client import SlurmNode, SlurmSettings

_WIDTH = 100


def template(settings: SlurmSettings, nodes: Sequence[SlurmNode], state: Path, shared: Path) -> str:
    """Return the text of a configuration file for this cluster.

    Args:
        settings: Slurm's settings.
        nodes: the cluster's nodes.
        state: the daemon's local directory.
        shared: the directory that all nodes share.
    """
    version = f"{settings.version[0]}.{settings.version[1]:02}"
    partitions = sorted({name for node in nodes for name in node.partitions})
    return _text(
        f"# metasched on cluster {settings.cluster} (Slurm {version}, {len(nodes)} nodes).",
        {"paths": {"state": str(state), "shared": str(shared)}, "slurm": {"exit_code": _exit_code(settings)}},
        {"intake": f"Partitions with nodes here: {', '.join(partitions) or 'none'}."},
    )


def packaged_template() -> str:
    """Return the text of a package's configuration file, for whatever cluster."""
    paths = {"state": "/var/lib/metasched", "shared": "/shared/metasched"}
    return _text("# metasched. Of this file, [paths] shared is the first key to set.", {"paths": paths}, {})


def _text(head: str, given: Mapping[str, Mapping[str, object]], hints: Mapping[str, str]) -> str:
    """Return the text of a file: every section with its keys, those that are given and others with their defaults."""
    lines = [
        head,
        "# Lines like `#key = value` show the defaults. `metasched check` checks the file against this cluster.",
    ]
    for name, field in Config.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            lines += ["", f"[{name}]", *_comment(_summary(section)), *_comment(hints.get(name, ""))]
            lines += _keys(section, given.get(name, {}))
    return "\n".join(lines) + "\n"


def _exit_code(settings: SlurmSettings) -> object:
    """Return the one exit code that Slurm holds and a trainer can use; None to leave the default."""
    usable = settings.requeue_exit_hold.intersection(EXIT_CODES)
    default = Config.model_fields["slurm"].default.exit_code
    return next(iter(usable)) if len(usable) == 1 and default not in usable else None


def _summary(section: type[BaseModel]) -> str:
    return (section.__doc__ or "").strip().partition("\n")[0]


def _keys(section: type[BaseModel], given: Mapping[str, object]) -> list[str]:
    lines = []
    for key, field in section.model_fields.items():
        value = given.get(key)
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            continue  # a sub-table, whose keys depend on the policy
        lines += _comment(meaning(field))
        lines.append(f"{key} = {json.dumps(value)}" if value is not None else f"#{key} = {json.dumps(default)}")
    return lines


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text.replace("``", "`"), _WIDTH)]
