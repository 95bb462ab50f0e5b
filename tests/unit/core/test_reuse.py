"""Reuse of earlier results."""

from metasched.core.reasons import Code, Reason
from metasched.core.reuse import unchanged


def test_an_equal_mapping_is_the_one_before():
    """Values that are equal are the earlier objects, and so is the whole."""
    before = {"a": Reason.of(Code.QUEUE_POSITION, position=1), "b": Reason(Code.NOT_ITS_TURN)}
    after = {"a": Reason.of(Code.QUEUE_POSITION, position=1), "b": Reason(Code.NOT_ITS_TURN)}
    assert unchanged(before, after) is before


def test_a_mapping_with_one_other_value_has_the_earlier_objects_of_the_rest():
    """A new value is its own, and a key that is gone is gone."""
    before = {"a": Reason.of(Code.QUEUE_POSITION, position=1), "b": Reason(Code.NOT_ITS_TURN), "c": Reason("gone")}
    after = {"a": Reason.of(Code.QUEUE_POSITION, position=1), "b": Reason(Code.ENDED)}
    found = unchanged(before, after)
    assert found == after
    assert found["a"] is before["a"]


def test_another_order_is_a_change():
    """Targets are in the order of importance."""
    assert list(unchanged({"a": 1, "b": 2}, {"b": 2, "a": 1})) == ["b", "a"]
