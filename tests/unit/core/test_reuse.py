"""Reuse of earlier results."""

from metasched.core.reasons import Code, Reason
from metasched.core.reuse import differing, in_order_of, patched, shared_text, unchanged


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


def test_mappings_differ_where_their_objects_do():
    """Equal objects that are not the same one count as different, like keys that are new or gone."""
    kept, before, after = object(), Reason(Code.ENDED), Reason(Code.ENDED)
    assert before == after
    assert differing({"a": kept, "b": before, "c": kept}, {"a": kept, "b": after, "d": kept}) == {"b", "c", "d"}
    assert differing({"a": kept}, {"a": kept}) == set()


def test_a_patched_mapping_keeps_its_order():
    """Other values take the place of the earlier ones, new keys come last, and the mapping before stays as it was."""
    before = {"a": 1, "b": 2, "c": 3}
    assert list(patched(before, {"b", "c", "x"}, {"c": 4, "d": 5}).items()) == [("a", 1), ("c", 4), ("d", 5)]
    assert before == {"a": 1, "b": 2, "c": 3}


def test_a_mapping_in_order_is_not_copied():
    """Another order of keys gives a mapping in that order."""
    found = {"a": 1, "b": 2}
    assert in_order_of(["a", "b"], found) is found
    assert list(in_order_of(["b", "a"], found)) == ["b", "a"]


def test_a_mapping_in_order_has_no_other_keys():
    """A key that is not named is dropped."""
    assert in_order_of(["b"], {"a": 1, "b": 2}) == {"b": 2}


def test_equal_texts_are_one_object_unless_they_are_long():
    """Users choose texts, so long ones are not kept."""
    short, long = ["a" * 100 + str(number) for number in (1, 1)], ["a" * 1000 + str(number) for number in (1, 1)]
    assert short[0] is not short[1]
    assert shared_text(short[0]) is shared_text(short[1])
    assert shared_text(long[1]) is long[1]
