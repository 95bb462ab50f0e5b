"""Every command line that a page shows is one that the commands take; the cheap ones are run."""

import importlib.util
import re
import runpy
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from metasched.cli import main
from metasched.core.policy import installed_policies
from metasched.core.policy_text import PolicyTextError, parse_parameters

ROOT = Path(__file__).parents[3]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "contrib").glob("*/README.md")),
]
POLICIES = installed_policies()
POLICIES.register(runpy.run_path(str(ROOT / "contrib/examples/own_policy/waited_per_gpu.py"))["WaitedPerGpu"])
CHEAP = {"policies", "schema"}
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_=\[\]:,.]*|.*[$<…].*|.*\.\.\.")


def blocks(page):
    """The fenced code blocks of a page."""
    return re.findall(r"^ *```\w*\n(.*?)^ *```", page, flags=re.MULTILINE | re.DOTALL)


def lines(page):
    """The commands of a page: of its code blocks, by line, and of its text, between backticks."""
    for block in blocks(page):
        joined = block.replace("\\\n", " ")
        yield from (re.sub(r"^\s*(\$ |# )?", "", line) for line in joined.splitlines())
    prose = re.sub(r"^ *```.*?^ *```", "", page, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=[|#])", prose):
        yield from (re.sub(r"\s+", " ", code) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", paragraph))


def ours(program):
    """The commands of all pages that begin with a program, with their page."""
    found = {}
    for page in PAGES:
        for line in lines(page.read_text(encoding="utf-8")):
            if re.match(rf"(\.venv/bin/|/\S+/bin/)?{program}( |$)", line):
                found.setdefault(line.strip(), str(page.relative_to(ROOT)))
    return found


COMMANDS = ours("metasched")


def arguments(line):
    """The words of a command line after the program, up to a comment, a pipe or a redirection."""
    words = []
    for word in shlex.split(line, comments=True)[1:]:
        if word in {"|", ">", ">>", "&&", ";", "&"}:
            break
        words.append(word)
    return words


def check(command, words, context):
    """Let click parse the words without running anything; options, numbers, choices and policies must be right."""
    try:
        given, rest, _ = command.make_parser(context).parse_args(list(words))
    except click.BadOptionUsage:  # the text names an option without its value
        given, rest, _ = command.make_parser(context).parse_args([*words, "VALUE"])
    by_name = {parameter.name: parameter for parameter in command.params}
    for name, value in given.items():
        parameter = by_name[name]
        for one in value if isinstance(value, list | tuple) else [value]:
            if not isinstance(one, str) or PLACEHOLDER.fullmatch(one):
                continue
            if isinstance(parameter, click.Option) and parameter.opts[0] == "--policy":
                parse_parameters(one, POLICIES)
            elif not isinstance(parameter.type, click.Path):
                parameter.type.convert(one, parameter, context)
    if isinstance(command, click.Group) and rest:
        name, found, left = command.resolve_command(context, rest)
        check(found, left, click.Context(found, info_name=name, parent=context))
    elif rest and not isinstance(command, click.Group):
        raise click.UsageError(f"too many arguments: {rest}")


@pytest.mark.parametrize("line", COMMANDS)
def test_metasched_takes_the_line(line):
    """The command and each of its options exist, and take the values that the page shows."""
    words = [word for word in arguments(line) if not re.fullmatch(r"\[.*|.*\]|.*\.\.\.", word) or "=" in word]
    check(main, words, click.Context(main, info_name="metasched"))


def test_the_pages_show_most_commands():
    """The extraction finds command lines in code blocks, in text and in tables."""
    assert len(COMMANDS) > 60
    assert {"metasched daemon --dry-run", "metasched explain JOB"} <= set(map(str.rstrip, COMMANDS))


@pytest.mark.parametrize(
    "line",
    [
        "metasched statsu",
        "metasched status --usr ada",
        "metasched simulate a b",
        "metasched status --limit x",
        "metasched what-if --policy lass",
    ],
)
def test_a_wrong_line_would_fail(line):
    """The check refuses unknown commands, options and policies, wrong values and too many arguments."""
    with pytest.raises((click.UsageError, PolicyTextError), match=r"(?i)no such|too many|not a valid|no policy"):
        check(main, arguments(line), click.Context(main, info_name="metasched"))


@pytest.mark.parametrize(
    "line", [one for one in COMMANDS if (words := arguments(one)) and words[0] in CHEAP and "COMMAND" not in words]
)
def test_cheap_lines_run(line):
    """Commands that need neither Slurm nor a daemon end with exit code 0."""
    done = CliRunner().invoke(main, arguments(line))
    assert done.exit_code == 0, done.output


def test_the_simulators_lines_run(tmp_path, monkeypatch):
    """The page's first scenario, with some jobs, is simulated by the page's own lines."""
    page = (ROOT / "docs" / "researcher" / "SIMULATOR.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    Path("scenario.toml").write_text(next(block for block in blocks(page) if block.startswith("[[nodes]]")))
    rows = [f"{n}|j{n}|ann|ml|2025-03-01T10:0{n}:00|600|gres/gpu={n}" for n in range(1, 5)]
    header = "JobID|JobName|User|Account|Submit|ElapsedRaw|AllocTRES"
    Path("jobs.txt").write_text("\n".join([header, *rows]) + "\n")
    shown = [line for line in blocks(page)[0].splitlines() if "scenario.toml" in line]
    assert len(shown) == 2
    for line in shown:
        done = CliRunner().invoke(main, arguments(line))
        assert done.exit_code == 0, done.output


def test_make_has_the_verbs():
    """Each `make` verb that a page shows is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    shown = {line: arguments(line) for line in ours("make")}
    assert len(shown) > 8
    wrong = {line for line, words in shown.items() for word in words if "=" not in word and word not in targets}
    assert wrong == set()


def test_modules_that_python_runs_exist():
    """Each `python -m MODULE` of a page is a module here or of Python, and each script a file."""
    shown = {line: line.split()[1:] for program in ("python", "python3") for line in ours(program)}
    assert len(shown) > 5
    modules = {words[1] for words in shown.values() if words[:1] == ["-m"] and len(words) > 1}
    assert {name for name in modules if name != "venv" and importlib.util.find_spec(name) is None} == set()
    scripts = {words[0] for words in shown.values() if words and words[0].startswith("contrib/")}
    assert {name for name in scripts if not (ROOT / name).exists()} == set()
