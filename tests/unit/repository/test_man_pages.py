import re
import runpy
from pathlib import Path

import click

from metasched.cli import main

ROOT = Path(__file__).parents[3]


def commands(command, name):
    """Every command from one on, by the name of its man page."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            yield from commands(command.get_command(context, word), f"{name}-{word}")


def test_each_command_has_a_man_page_with_its_options(tmp_path):
    """`make docs` writes a page for each command and subcommand, whose first line `whatis` shows."""
    written = runpy.run_path(str(ROOT / "docs" / "site" / "man_pages.py"))["write"](tmp_path)
    pages = {path.stem: path.read_text().replace("\\-", "-") for path in written}
    expected = dict(commands(main, "metasched"))
    assert pages.keys() == expected.keys()
    for name, command in expected.items():
        assert re.search(rf"^{name} - \S", pages[name], flags=re.MULTILINE), name
        shown = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
        assert [
            option.name for option in shown if f"\\fB{option.opts[0]}\\fP" not in pages[name].replace(",\\fP", "\\fP")
        ] == []
