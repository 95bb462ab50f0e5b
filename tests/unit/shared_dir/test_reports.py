"""Report lines: lines of the protocol are accepted, all others refused."""

import json
import math
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.shared_dir.reports import (
    MAX_LINE_BYTES,
    CheckpointReport,
    DeclareReport,
    EndReport,
    RefusedLineError,
    StartReport,
    StepsReport,
    StopReport,
    parse_line,
)

NOW = 1_732_118_400.0
LINES = {
    "start": {
        "run": 2,
        "incarnation": 3,
        "world_size": 4,
        "step": 100,
        "samples": 6400,
        "resumed": True,
        "init_seconds": 2.5,
    },
    "declare": {"total_steps": 1000},
    "steps": {
        "step": 110,
        "steps": 10,
        "samples": 640,
        "seconds": 1.25,
        "loss": 0.5,
        "world_size": 4,
        "global_batch": 64,
        "per_gpu_batch": 8,
        "accumulation": 2,
    },
    "checkpoint": {"step": 110, "seconds": 0.5, "bytes": 1024, "cause": "stop"},
    "stop": {"step": 110, "cause": "signal", "noticed": NOW - 1, "checkpointed": True},
    "end": {"step": 1000, "samples": 64000, "loss": None},
}


def line(kind, /, **changes):
    values = {"v": 1, "t": NOW, "kind": kind, **LINES[kind], **changes}
    return json.dumps({key: value for key, value in values.items() if value is not ...}).encode()


def test_every_kind_is_read():
    """Each kind becomes its record, with the values of the line."""
    assert parse_line(line("start"), NOW) == StartReport(NOW, 2, 3, 4, 100, 6400, resumed=True, init_seconds=2.5)
    assert parse_line(line("declare"), NOW) == DeclareReport(NOW, 1000, None, None)
    assert parse_line(line("steps"), NOW) == StepsReport(NOW, 110, 10, 640, 1.25, 0.5, 4, 64, 8, 2)
    assert parse_line(line("checkpoint"), NOW) == CheckpointReport(NOW, 110, 0.5, 1024, "stop")
    assert parse_line(line("stop"), NOW) == StopReport(NOW, 110, "signal", NOW - 1, checkpointed=True)
    assert parse_line(line("end"), NOW) == EndReport(NOW, 1000, 64000, None)


def test_optional_keys_are_read():
    """A line without them is accepted, too."""
    steps = parse_line(line("steps", data_seconds=0.25, sync_seconds=0, peak_bytes=2**30), NOW)
    assert steps == StepsReport(NOW, 110, 10, 640, 1.25, 0.5, 4, 64, 8, 2, 0.25, 0.0, 2**30)
    assert parse_line(line("steps", data_seconds=None), NOW) == parse_line(line("steps"), NOW)
    stalled = parse_line(line("checkpoint", stall_seconds=0.125), NOW)
    assert stalled == CheckpointReport(NOW, 110, 0.5, 1024, "stop", 0.125)


def test_keys_of_changing_batches_are_read():
    """A trainer whose batch never changes leaves them out."""
    steps = parse_line(line("steps", progress=12.5, grad_square=2, grad_variance=-1.5, plan=3), NOW)
    assert (steps.progress, steps.grad_square, steps.grad_variance, steps.plan) == (12.5, 2.0, -1.5, 3)
    limits = {"first_batch": 64, "max_batch": 512, "min_per_gpu": 8, "max_per_gpu": 64}
    declared = parse_line(line("declare", **limits, adaptive=True, lr_scale="adascale"), NOW)
    assert declared == DeclareReport(NOW, 1000, None, None, *limits.values(), adaptive=True, lr_scale="adascale")
    for kind in ("start", "stop", "end"):
        assert parse_line(line(kind, progress=12.5), NOW).progress == 12.5
        assert parse_line(line(kind), NOW).progress is None


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("steps", {"progress": -1}),
        ("steps", {"plan": -1}),
        ("steps", {"grad_square": "1"}),
        ("declare", {"first_batch": 0}),
        ("declare", {"max_batch": 1.5}),
        ("declare", {"adaptive": 1}),
        ("declare", {"lr_scale": "x" * 65}),
    ],
)
def test_wrong_keys_of_changing_batches_are_refused(kind, wrong):
    """The whole line is refused."""
    with pytest.raises(RefusedLineError):
        parse_line(line(kind, **wrong), NOW)


def test_unknown_kinds_and_keys_are_ignored():
    """A newer shim may report more than this daemon reads."""
    assert parse_line(b'{"v": 1, "t": 1732118400, "kind": "gradient", "noise": 3}', NOW) is None
    assert parse_line(line("end", note="hello"), NOW) == parse_line(line("end"), NOW)


@pytest.mark.parametrize("kind", sorted(set(LINES) - {"declare"}))
def test_a_missing_key_is_refused(kind):
    """A known kind needs all its keys, and the refusal names the missing one."""
    for key in LINES[kind]:
        with pytest.raises(RefusedLineError, match=key):
            parse_line(line(kind, **{key: ...}), NOW)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("steps", {"v": 2}),
        ("steps", {"v": ...}),
        ("steps", {"t": NOW + 7 * 24 * 3600}),
        ("steps", {"t": 0}),
        ("steps", {"t": "now"}),
        ("steps", {"step": -1}),
        ("steps", {"step": 1.0}),
        ("steps", {"step": True}),
        ("steps", {"step": 10**13}),
        ("steps", {"steps": 0}),
        ("steps", {"seconds": 0}),
        ("steps", {"seconds": -1.0}),
        ("steps", {"seconds": 10**400}),
        ("steps", {"seconds": 1e-12}),
        ("steps", {"samples": 10**14}),
        ("steps", {"loss": math.nan}),
        ("steps", {"loss": math.inf}),
        ("steps", {"loss": "0.5"}),
        ("steps", {"loss": True}),
        ("steps", {"loss": 10**400}),
        ("steps", {"v": True}),
        ("steps", {"v": 1.0}),
        ("steps", {"world_size": 0}),
        ("steps", {"data_seconds": -0.5}),
        ("steps", {"sync_seconds": "1"}),
        ("steps", {"peak_bytes": 1.5}),
        ("checkpoint", {"stall_seconds": math.inf}),
        ("start", {"resumed": 1}),
        ("start", {"run": 0}),
        ("start", {"init_seconds": -0.5}),
        ("checkpoint", {"cause": "whim"}),
        ("checkpoint", {"bytes": -1}),
        ("stop", {"cause": ["signal"]}),
        ("stop", {"noticed": None}),
        ("stop", {"checkpointed": None}),
        ("declare", {"total_steps": 0}),
        ("declare", {"global_batch": "64"}),
        ("end", {"kind": None}),
        ("end", {"kind": ["end"]}),
    ],
)
def test_an_implausible_value_is_refused(kind, changes):
    """Wrong types, numbers out of range or not finite, and instants far ahead are refused."""
    with pytest.raises(RefusedLineError):
        parse_line(line(kind, **changes), NOW)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"v": 1, "t": 1732118400, "kind": "end", "step": 1e999, "samples": 1, "loss": null}',
        b"[" * 60_000,
        b'{"v": ' + b"9" * 5000 + b"}",
        b'{"v": 1, "t": 1732118400, "kind": "\xff"}',
        b'{"v": 1, "t": 1732118400, "kind": "gradient", "noise": NaN}',
        b'{"v": 1, "t": 1732118400, "kind": "gradient", "noise": ' + b"[" * 60_000 + b"]" * 100 + b"}",
        b'{"v": 1, "pad": "' + b"x" * MAX_LINE_BYTES + b'"}',
    ],
)
def test_text_that_is_not_a_report_is_refused(text):
    """Text that is not one JSON object of bounded size is a RefusedLineError, never an exception of the parser."""
    with pytest.raises(RefusedLineError):
        parse_line(text, NOW)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("steps", {"step": -1}, r"int.*>= 0.*step"),
        ("steps", {"seconds": "1"}, r"float.*str.*seconds"),
        ("steps", {"t": NOW + 7 * 24 * 3600}, "'t'.*clock is ahead"),
        ("stop", {"noticed": NOW + 7 * 24 * 3600}, "'noticed'.*clock is ahead"),
        ("stop", {"cause": "whim"}, r"whim.*cause"),
        ("steps", {"seconds": 1e-12}, "10 steps of 640 samples.*implausible"),
        ("start", {"incarnation": 0}, r">= 1.*incarnation"),
    ],
)
def test_a_refusal_names_the_key_and_the_expected_value(kind, changes, message):
    """The message tells the author of a trainer what to correct, by the protocol's name of the key."""
    with pytest.raises(RefusedLineError, match=message):
        parse_line(line(kind, **changes), NOW)


def test_the_last_of_duplicate_keys_counts():
    """JSON does not forbid duplicate keys."""
    text = b'{"v": 1, "t": 1732118400, "kind": "end", "step": 1, "samples": 1, "loss": null, "step": 2}'
    assert parse_line(text, NOW).step == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(kind=st.sampled_from(sorted(LINES)), key=st.data(), value=JSON)
def test_any_value_is_accepted_or_refused(kind, key, value):
    """A line with any value of a key becomes finite numbers or a RefusedLineError."""
    name = key.draw(st.sampled_from(["v", "t", "kind", *sorted(LINES[kind])]))
    try:
        report = parse_line(line(kind, **{name: value}), NOW)
    except RefusedLineError:
        return
    if report is not None:
        numbers = msgspec.structs.astuple(report)
        assert all(math.isfinite(number) for number in numbers if isinstance(number, int | float))


@given(st.binary(max_size=200))
def test_any_bytes_are_accepted_or_refused(text):
    """Bytes of any kind raise nothing but RefusedLineError."""
    with suppress(RefusedLineError):
        assert parse_line(text, NOW) is None
