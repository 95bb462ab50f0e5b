"""docs/user/FROM-YOUR-SCRIPT.md shows the scripts of contrib/examples/adoption as they are."""

import re

import pytest

from contrib.benchmarks import adoption

PAGE = (adoption.ROOT / "docs" / "user" / "FROM-YOUR-SCRIPT.md").read_text()
EXCERPTS = re.findall(r"^```diff\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def segments(excerpt, sign):
    """The excerpt's lines on one side, `-` or `+`, in runs that follow one another in the script, without indent."""
    found = []
    for part in excerpt.split("  ...\n"):
        lines = [line[2:] for line in part.splitlines() if line[0] in (" ", sign)]
        if lines:
            indent = min(len(line) - len(line.lstrip()) for line in lines)
            found.append([line[indent:] for line in lines])
    return found


def occurs(segment, script):
    """Whether the lines follow one another in the script, empty lines and the indent apart."""
    lines = [line for line in script.read_text().splitlines() if line.strip()]
    for first in range(len(lines) - len(segment) + 1):
        indent = len(lines[first]) - len(lines[first].lstrip()) - (len(segment[0]) - len(segment[0].lstrip()))
        if indent >= 0 and lines[first : first + len(segment)] == [" " * indent + line for line in segment]:
            return True
    return False


def test_the_page_has_an_excerpt_for_each_habit():
    """The search finds the excerpts, and each of them has both sides."""
    assert len(EXCERPTS) >= 12
    assert all(segments(excerpt, "-") and segments(excerpt, "+") for excerpt in EXCERPTS)


@pytest.mark.parametrize("number", range(len(EXCERPTS)))
def test_an_excerpt_is_in_its_scripts(number):
    """Some script's plain form has the lines of an excerpt before, and its adopted form those after."""
    before, after = segments(EXCERPTS[number], "-"), segments(EXCERPTS[number], "+")
    assert any(
        all(occurs(segment, adoption.SCRIPTS / name / "plain.py") for segment in before)
        and all(occurs(segment, adoption.SCRIPTS / name / "adopted.py") for segment in after)
        for name in adoption.NAMES
    ), EXCERPTS[number]


def test_a_changed_line_is_not_found():
    """The comparison fails for a line that no script has."""
    before = segments(EXCERPTS[0].replace("- seed = args.seed", "- seed = 1 + args.seed"), "-")
    assert not any(occurs(before[0], adoption.SCRIPTS / name / "plain.py") for name in adoption.NAMES)


@pytest.mark.parametrize("name", adoption.NAMES)
def test_the_table_has_the_lines_of_each_script(name):
    """The page's table has the numbers of written and deleted lines that the command counts now."""
    written, deleted = adoption.changed_lines(
        *(adoption.SCRIPTS / name / f"{form}.py" for form in ("plain", "adopted"))
    )
    assert f"\n| {name} | {written} | {deleted} |" in PAGE
