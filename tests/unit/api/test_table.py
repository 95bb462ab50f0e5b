import dataclasses
import sys

import pytest

from metasched.api import MissingExtraError, Table
from metasched.core.model import Placement
from metasched.core.reasons import Reason


@dataclasses.dataclass(frozen=True)
class One:
    name: str
    seconds: float | None = None
    placement: Placement | None = None
    reason: Reason | None = None


def test_a_data_frame_has_a_column_for_each_field():
    """Reasons are in words and in codes, nested records are dictionaries, and what is not known is missing."""
    place = Placement(("n1",), 2, "v100")
    frame = Table([One("a", 2.0, place, Reason.text("because")), One("b")]).to_pandas()
    assert list(frame["name"]) == ["a", "b"]
    assert frame["placement"][0]["nodes"] == ("n1",)
    assert frame["reason"][0] == "because"
    assert frame["seconds"].isna().tolist() == [False, True]


def test_an_empty_data_frame_has_columns():
    """A script that selects a column works before there are rows."""
    assert list(Table([], shown=("name",)).to_pandas()["name"]) == []


def test_without_pandas_the_error_names_the_extra(monkeypatch):
    """Pandas is optional."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'metasched\[daemon,pandas\]'"):
        Table([One("a")]).to_pandas()


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a\x1b[31m\u202eb", '"onmouseover="x', "&lt;b&gt;"])
def test_a_notebook_shows_hostile_names_as_text(name):
    """A user's job name is no HTML, and has no control characters."""
    shown = Table([One(name)])._repr_html_()
    inside = shown[shown.index("<tbody>") :]
    assert "<script" not in inside
    assert not {'"', "\x1b", "\u202e"} & set(inside)
    assert inside.count("<td>") == 4
    assert "&lt;b&gt;" not in inside or "&amp;lt;b" in inside


def test_a_notebook_shows_the_first_rows_of_a_long_table():
    """A table of ten thousand jobs is bounded, in rows and in a cell's characters."""
    shown = Table([One(f"n{i}" + "x" * 100_000) for i in range(500)], shown=("name",))._repr_html_()
    assert shown.count("<tr>") == 61
    assert "440 more rows" in shown
    assert len(shown) < 20_000


def test_a_slice_is_a_table():
    """Slices keep columns; an index gives the record."""
    table = Table([One("a"), One("b"), One("c")], shown=("name",))
    assert [one.name for one in table[1:]] == ["b", "c"]
    assert isinstance(table[1:], Table)
    assert (table[-1].name, len(table)) == ("c", 3)
