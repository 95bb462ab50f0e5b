"""The examples show what adopting the shim takes."""

import difflib
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "contrib" / "examples"


def test_fewer_than_ten_lines():
    """Fewer than ten lines are written (`+` in a diff, blank ones not counted), and fewer than ten deleted (`-`)."""
    plain, elastic = ((EXAMPLES / f"train_{name}.py").read_text().splitlines() for name in ("plain", "elastic"))
    signs = [line[0] for line in difflib.ndiff(plain, elastic) if line[2:].strip()]
    assert 0 < signs.count("+") < 10
    assert 0 < signs.count("-") < 10
