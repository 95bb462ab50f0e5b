import json
import re
from pathlib import Path

import click
import pytest
from pydantic import BaseModel

from metasched.cli import main
from metasched.configuration.config import Config

DOCS = Path(__file__).parents[3] / "docs"


def commands(command, path):
    """Every command below one, with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), f"{path} {name}")


def sections(page):
    """The page's sections by heading, without backticks."""
    parts = re.split(r"^#+ (.*)$", page, flags=re.MULTILINE)
    return {heading.replace("`", ""): text for heading, text in zip(parts[1::2], parts[2::2], strict=True)}


CLI = sections((DOCS / "user" / "CLI.md").read_text(encoding="utf-8"))
COMMANDS = dict(commands(main, "metasched"))
CONFIG = sections((DOCS / "admin" / "CONFIG.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", COMMANDS)
def test_the_page_mentions_every_command_and_option(path):
    """Each command has a section in docs/user/CLI.md that names each of its options and arguments."""
    assert path in CLI
    for parameter in COMMANDS[path].params:
        names = parameter.opts if isinstance(parameter, click.Option) else [parameter.name.upper()]
        for name in names:
            assert re.search(rf"`{name}\b", CLI[path]), f"{path}: {name}"


def test_the_page_mentions_no_unknown_command_or_option():
    """Every command and option of docs/user/CLI.md exists."""
    for heading, text in CLI.items():
        if heading.startswith("metasched"):
            known = {name for parameter in COMMANDS[heading].params for name in parameter.opts}
            assert set(re.findall(r"^\| `(--?[\w-]+)", text, flags=re.MULTILINE)) <= known


KEYS = [
    (section, key, field)
    for section, model in Config.model_fields.items()
    for key, field in model.annotation.model_fields.items()
]


def shown(field):
    """A default as TOML writes it; none for a key that must be given."""
    if field.is_required():
        return "none"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return "{}"
    return f"`{json.dumps(default)}`"


@pytest.mark.parametrize(("section", "key", "field"), KEYS, ids=[f"{section}.{key}" for section, key, _ in KEYS])
def test_every_config_key_is_documented_with_its_default(section, key, field):
    """Each key has a row in its section of docs/admin/CONFIG.md, with the default that the code has."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", CONFIG[f"[{section}]"], flags=re.MULTILINE))
    assert key in rows
    assert rows[key].replace("`", "") == shown(field).replace("`", "")


def test_no_other_config_key_is_documented():
    """docs/admin/CONFIG.md names no key that does not exist."""
    for section, model in Config.model_fields.items():
        rows = re.findall(r"^\| `(\w+)` \|", CONFIG[f"[{section}]"], flags=re.MULTILINE)
        assert set(rows) <= set(model.annotation.model_fields)


def test_the_readmes_links_lead_somewhere():
    """Every relative link of README.md is a file of the repository."""
    links = re.findall(r"\]\(([^)]+)\)", (DOCS.parent / "README.md").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if "://" not in link and not (DOCS.parent / link).exists()] == []
