"""The tag in a job's comment."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core.batching import AdaptationRule, BatchControl
from metasched.core.model import Preempt
from metasched.slurm.errors import TagError
from metasched.slurm.tags import KEYS, MAX_LENGTH, Tag, is_tagged, parse_tag, quote

DOCS = Path(__file__).parents[3] / "docs" / "user" / "TAGS.md"


@pytest.mark.parametrize(
    "comment", ["", " ", "metascheduled", "a metasched", "Metasched", "metasched=1", "metasched,x"]
)
def test_other_comments_are_no_tags(comment):
    """Only the exact first word makes a comment a tag."""
    assert parse_tag(comment) is None


@pytest.mark.parametrize("comment", ["metasched", "  metasched  "])
def test_the_bare_word_is_a_tag_with_defaults(comment):
    """A tag needs no key."""
    assert parse_tag(comment) == Tag()


def test_every_key_is_read():
    """Each key has its own type."""
    comment = (
        "metasched min_gpus=1 max_gpus=8 preempt=no weight=0.25 max_nodes=2 gpu_types=v100,a100-80gb total_steps=90000 "
        "slo=1.5h model=resnet50-b256"
    )
    assert parse_tag(comment) == Tag(1, 8, Preempt.NO, 0.25, 2, ("v100", "a100-80gb"), 90000, 5400.0, "resnet50-b256")


def test_a_script_may_change_its_batch_by_itself():
    """The tag names its rule and the largest number of regimes."""
    found = parse_tag("metasched batch=own adapts=gns regimes=4")
    assert (found.batch, found.adapts, found.regimes) == (BatchControl.SCRIPT, AdaptationRule.GNS, 4)
    assert parse_tag("metasched batch=adaptive").batch is BatchControl.SCHEDULER
    assert parse_tag("metasched batch=fixed") == Tag()


def test_sizes_are_sorted_numbers_of_gpus():
    """Each number counts once."""
    assert parse_tag("metasched sizes=8,2,1,2").sizes == (1, 2, 8)


@pytest.mark.parametrize(("text", "seconds"), [("45s", 45), ("90m", 5400), ("2h", 7200), ("0.5d", 43200)])
def test_a_time_has_a_unit(text, seconds):
    """The units are seconds, minutes, hours and days."""
    assert parse_tag(f"metasched slo={text}").slo_seconds == seconds


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("metasched min_gpu=1", "'min_gpu=1': there is no key 'min_gpu'; did you mean min_gpus?"),
        ("metasched colour=red", "'colour=red': there is no key 'colour'; known are min_gpus,"),
        ("metasched MIN_GPUS=1", "there is no key 'MIN_GPUS'"),
        ("metasched fast", "'fast' is not of the form key=value"),
        ("metasched min_gpus = 1", "'min_gpus' is not of the form key=value (no spaces around the '=')"),
        ("metasched min_gpus=1 min_gpus=1", "'min_gpus=1': min_gpus is given twice"),
        ("metasched min_gpus=", "'min_gpus=': write a whole number from 1"),
        ("metasched batch=auto", "'batch=auto': write adaptive (metasched may change the batch size), own (the"),
        ("metasched batch=own adapts=often", "'adapts=often': write one of static, accordion, gns, schedule"),
        ("metasched adapts=gns", "'adapts' says how the script changes its batch size by itself: write batch=own"),
        ("metasched batch=adaptive regimes=3", "'regimes' says how the script changes"),
        ("metasched batch=own adapts=static regimes=3", "'regimes=3' does not suit adapts=static"),
        ("metasched batch=own regimes=0", "'regimes=0': write a whole number from 1"),
        ("metasched slo=2", "'slo=2': write how long after its submission"),
        ("metasched slo=0h", "such as slo=90m"),
        ("metasched slo=-1h", "such as slo=90m"),
        ("metasched slo=2H", "such as slo=90m"),
        ("metasched slo=99999999d", "such as slo=90m"),
        ("metasched slo=1h slo=2h", "slo is given twice"),
        ("metasched model=", "'model=': write letters, digits"),
        ("metasched model=a/b", "'model=a/b': write letters, digits"),
        ("metasched min_gpus=two", "'min_gpus=two': write a whole number"),
        ("metasched min_gpus=0", "'min_gpus=0': write a whole number from 1"),
        ("metasched min_gpus=-1", "write a whole number"),
        ("metasched min_gpus=1.5", "write a whole number"),
        ("metasched min_gpus=1_0", "write a whole number"),
        ("metasched min_gpus=٣", "write a whole number"),
        ("metasched max_gpus=1000001", "from 1 to 1000000"),
        ("metasched sizes=1,,2", "such as sizes=1,2,4,8"),
        ("metasched sizes=0,2", "from 1 to 1000000"),
        ("metasched sizes=1,2 min_gpus=3", "names no number of GPUs from min_gpus to max_gpus"),
        ("metasched max_gpus=99999999999999999999", "from 1 to 1000000"),
        (
            "metasched min_gpus=4 max_gpus=2",
            "'min_gpus=4' is more than 'max_gpus=2': write the smaller number as min_gpus",
        ),
        ("metasched preempt=kill", "'preempt=kill': write one of checkpoint, suspend, no"),
        ("metasched weight=2", "'weight=2': write a number from 0.001 to 1, such as 0.5"),
        ("metasched weight=0", "from 0.001 to 1"),
        ("metasched weight=0.0009", "from 0.001 to 1"),
        ("metasched weight=0.000000001", "from 0.001 to 1"),
        ("metasched weight=-0.5", "from 0.001 to 1"),
        ("metasched weight=nan", "from 0.001 to 1"),
        ("metasched weight=inf", "from 0.001 to 1"),
        ("metasched weight=1e-3", "from 0.001 to 1"),
        ("metasched gpu_types=", "'gpu_types=': write names of GPU types"),
        ("metasched gpu_types=v100,", "write names of GPU types"),
        ("metasched gpu_types=v100,v100", "a type is named twice"),
        ("metasched total_steps=0", "from 1 to"),
        ("metasched\nmin_gpus=1", "unprintable character '\\n'"),
        ("metasched min_gpus=1\x00", "unprintable character '\\x00'"),
        ("metasched min_gpus=\x1b[31m1", "unprintable character '\\x1b'"),
        ("metasched " + "x" * MAX_LENGTH, f"shorten it to at most {MAX_LENGTH}"),
    ],
)
def test_a_malformed_tag_is_an_error_that_says_the_fix(comment, message):
    """The message quotes the wrong word."""
    with pytest.raises(TagError, match=re.escape(message)):
        parse_tag(comment)


@given(st.text(max_size=60))
def test_any_comment_gives_a_tag_or_a_printable_error(text):
    """The message is one line of bounded length without control characters, because other users' terminals show it."""
    message = ""
    try:
        parse_tag("metasched " + text)
    except TagError as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 600


@given(st.text(max_size=30))
def test_being_tagged_and_being_parsed_agree(text):
    """A comment that is tagged is parsed or refused, never passed over."""
    try:
        tag = parse_tag(text)
    except TagError:
        assert is_tagged(text)
    else:
        assert (tag is not None) == is_tagged(text)


def test_quotes_are_short_printable_and_ascii():
    """This holds for any quoted text."""
    assert quote("a" * 100) == repr("a" * 57 + "...")
    assert quote("ü\n") == "'\\xfc\\n'"


def test_every_key_is_documented():
    """Neither the parser nor docs/user/TAGS.md has a key that the other lacks."""
    keys, _, _ = DOCS.read_text().partition("### ")  # the first table of the page
    documented = re.findall(r"^\| `(\w+)` \|", keys, re.MULTILINE)
    assert documented == list(KEYS)
