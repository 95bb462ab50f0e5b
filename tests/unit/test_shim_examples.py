"""The examples show what adopting the shim takes."""

import difflib
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "contrib" / "examples"


def test_fewer_than_ten_lines():
    """Of the elastic script, fewer than ten lines are not in the plain one."""
    plain, elastic = ((EXAMPLES / f"train_{name}.py").read_text().splitlines() for name in ("plain", "elastic"))
    difference = list(difflib.ndiff(plain, elastic))
    written = [line for line in difference if line.startswith("+ ") and line[2:].strip()]
    assert 0 < len(written) < 10
