"""The parser of the tag in a job's comment: ``metasched min_gpus=1 max_gpus=8`` (docs/user/TAGS.md).

A new key is a field of ``Tag``, an entry of ``KEYS``, a field with a default of ``Requirements`` in
slurm/job_requirements.py, which applies the tag to what the job requests from Slurm, and a line of ``HELP`` in
cli/submit.py and of docs/user/TAGS.md, and a word of ``KEYS`` in slurm_scripts/job_submit.lua. A key that policies read
is also a field in core/model.py, which ``job_of`` in observe/observed_job.py fills. The database needs no change.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from metasched.core.apps import TunerSettings
from metasched.core.batching import MAX_REGIMES, AdaptationRule, BatchControl
from metasched.core.model import Preempt
from metasched.slurm.errors import TagError

FIRST_WORD = "metasched"
MAX_LENGTH = 1024
_MAX_COUNT = 1_000_000
_MAX_STEPS = 10**15
_SHOWN = 60
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_SLO = 10**9
_MOST_OPTIONS = 16
_NUMBER = r"[0-9]{1,16}(?:\.[0-9]{1,16})?(?:e-?[0-9]{1,2})?"
MAX_SIZES = 64
"""A tag and a report name at most so many numbers of GPUs."""
LEAST_WEIGHT = 0.001
"""A job of less weight than this would hardly ever run among others; so small a number is taken for a mistake."""


@dataclass(frozen=True, slots=True)
class Tag:
    """The contents of a tag; ``None`` and empty for keys that the tag does not name.

    Attributes:
        min_gpus: fewest GPUs.
        max_gpus: most GPUs.
        preempt: how the job may be preempted.
        weight: the job's weight relative to other jobs, from ``LEAST_WEIGHT`` to 1.
        max_nodes: most nodes of an allocation.
        gpu_types: acceptable types of GPUs.
        total_steps: optimizer steps of the whole training.
        slo_seconds: seconds from submission to the latest acceptable end.
        model: name of the trained model: jobs of one user with the same model are equally fast.
        trials: whether profiling runs of a few steps at other sizes may precede the training.
        batch: who may change the batch size: nobody, the script by a rule of its own, or metasched, where the script
            consents, too.
        adapts: the rule by which the script changes the batch size; None where the tag names none.
        regimes: the largest number of batch size regimes of the whole training.
        app: NAME of the app that the job belongs to.
        tuner: the tuner of the job's app; whether there is such a tuner, and its options, are checked elsewhere
            (``apps.tuners.registry.make_tuner``).
        sizes: the numbers of GPUs on which the job can run, ascending.
    """

    min_gpus: int | None = None
    max_gpus: int | None = None
    preempt: Preempt = Preempt.CHECKPOINT
    weight: float = 1.0
    max_nodes: int | None = None
    gpu_types: tuple[str, ...] = ()
    total_steps: int | None = None
    slo_seconds: float | None = None
    model: str | None = None
    trials: bool = False
    batch: BatchControl = BatchControl.FIXED
    adapts: AdaptationRule | None = None
    regimes: int | None = None
    app: str | None = None
    tuner: TunerSettings | None = None
    sizes: tuple[int, ...] = ()


def is_tagged(comment: str) -> bool:
    """Whether the comment is a tag: its first word (with blanks as in C and lua) is ``metasched``."""
    return re.match(rf"\s*{FIRST_WORD}(?:\s|$)", comment, re.ASCII) is not None


def parse_tag(comment: str) -> Tag | None:
    """Parse the tag in a comment; None for a comment whose first word is not ``metasched``.

    Raises:
        TagError: a word is wrong; the message quotes it and says what to write instead.
    """
    if not is_tagged(comment):
        return None
    if len(comment) > MAX_LENGTH:
        raise TagError(f"the comment is {len(comment)} characters long: shorten it to at most {MAX_LENGTH}")
    if not comment.isprintable():
        odd = next(character for character in comment if not character.isprintable())
        raise TagError(
            f"the comment contains the unprintable character {quote(odd)}: separate key=value pairs by spaces"
        )
    values: dict[str, Any] = {}
    for word in comment.split()[1:]:
        key, equals, text = word.partition("=")
        if not equals:
            raise TagError(f"{quote(word)} is not of the form key=value (no spaces around the '=')")
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(KEYS)}"
            raise TagError(f"{quote(word)}: there is no key {quote(key)}; {hint}")
        if FIELDS.get(key, key) in values:
            raise TagError(f"{quote(word)}: {key} is given twice; keep one of them")
        values[FIELDS.get(key, key)] = KEYS[key](word, text)
    tag = Tag(**values)
    if tag.min_gpus is not None and tag.max_gpus is not None and tag.min_gpus > tag.max_gpus:
        raise TagError(
            f"'min_gpus={tag.min_gpus}' is more than 'max_gpus={tag.max_gpus}': write the smaller number as min_gpus"
        )
    _check_sizes(tag)
    _check_batch(tag)
    return tag


def quote(text: str) -> str:
    """Quote a user's text for a message: one line, printable ASCII, at most 60 characters of the text."""
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
    return ascii(shown)


def _integer(most: int) -> Callable[[str, str], int]:
    def parse(word: str, text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,16}", text, re.ASCII) or not 1 <= int(text) <= most:
            raise TagError(f"{quote(word)}: write a whole number from 1 to {most}")
        return int(text)

    return parse


def _weight(word: str, text: str) -> float:
    if not re.fullmatch(r"[0-9]{0,3}\.?[0-9]{1,9}", text, re.ASCII) or not LEAST_WEIGHT <= float(text) <= 1:
        raise TagError(
            f"{quote(word)}: write a number from {LEAST_WEIGHT:g} to 1, such as 0.5 "
            "(a tag can lower a job's weight, not raise it)"
        )
    return float(text)


def _preempt(word: str, text: str) -> Preempt:
    try:
        return Preempt(text)
    except ValueError:
        raise TagError(f"{quote(word)}: write one of {', '.join(way.value for way in Preempt)}") from None


def _gpu_types(word: str, text: str) -> tuple[str, ...]:
    types = tuple(text.split(","))
    if not all(re.fullmatch(r"[A-Za-z0-9_.+-]{1,64}", name, re.ASCII) for name in types):
        raise TagError(
            f"{quote(word)}: write names of GPU types with commas and no spaces, such as gpu_types=v100,a100"
        )
    if len(set(types)) != len(types):
        raise TagError(f"{quote(word)}: a type is named twice; keep one of them")
    return types


def _sizes(word: str, text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,7}(?:,[0-9]{1,7})*", text, re.ASCII):
        raise TagError(f"{quote(word)}: write numbers of GPUs with commas and no spaces, such as sizes=1,2,4,8")
    sizes = sorted({int(size) for size in text.split(",")})
    if not 1 <= sizes[0] <= sizes[-1] <= _MAX_COUNT or len(sizes) > MAX_SIZES:
        raise TagError(f"{quote(word)}: write at most {MAX_SIZES} numbers of GPUs from 1 to {_MAX_COUNT}")
    return tuple(sizes)


def _slo(word: str, text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd])", text, re.ASCII)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < seconds <= _MAX_SLO:
        raise TagError(
            f"{quote(word)}: write how long after its submission the job should be finished, such as slo=90m, slo=2h "
            "or slo=1.5d (s, m, h or d)"
        )
    return seconds


def _model(word: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.+:-]{1,64}", text, re.ASCII):
        raise TagError(f"{quote(word)}: write letters, digits and _.+:- only, at most 64 of them, as in model=resnet50")
    return text


def _yes_or_no(word: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise TagError(f"{quote(word)}: write yes or no")
    return text == "yes"


def _batch(word: str, text: str) -> BatchControl:
    if text not in BATCHES:
        raise TagError(
            f"{quote(word)}: write adaptive (metasched may change the batch size), own (the script changes it by a "
            "rule of its own) or fixed"
        )
    return BATCHES[text]


def _app(word: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.+:-]{1,64}", text, re.ASCII):
        raise TagError(f"{quote(word)}: write letters, digits and _.+:- only, at most 64 of them, as in app=search-7")
    return text


def _tuner(word: str, text: str) -> TunerSettings:
    name, *options = text.split(",")
    form = f"{quote(word)}: write a tuner, then its options, as in tuner=halving,eta=2,steps=10000"
    if not re.fullmatch(r"[a-z][a-z_]{0,31}", name, re.ASCII) or len(options) > _MOST_OPTIONS:
        raise TagError(form)
    values: dict[str, float] = {}
    for option in options:
        key, _, number = option.partition("=")
        if not re.fullmatch(r"[a-z][a-z_]{0,31}", key, re.ASCII) or not re.fullmatch(_NUMBER, number, re.ASCII):
            raise TagError(f"{form}; {quote(option)} is not of the form option=number")
        if key in values:
            raise TagError(f"{quote(word)}: {key} is given twice; keep one of them")
        values[key] = float(number)
    return TunerSettings(name, values)


def _adapts(word: str, text: str) -> AdaptationRule:
    try:
        return AdaptationRule(text)
    except ValueError:
        raise TagError(f"{quote(word)}: write one of {', '.join(rule.value for rule in AdaptationRule)}") from None


def _check_sizes(tag: Tag) -> None:
    """Raise TagError where no size is in the range of the tag."""
    least, most = tag.min_gpus or 0, tag.max_gpus or _MAX_COUNT
    if tag.sizes and not any(least <= size <= most for size in tag.sizes):
        shown = ",".join(map(str, tag.sizes))
        raise TagError(
            f"{quote(f'sizes={shown}')} names no number of GPUs from min_gpus to max_gpus: change one of them"
        )


def _check_batch(tag: Tag) -> None:
    """Raise TagError where the keys on the batch size contradict each other."""
    for key, value in (("adapts", tag.adapts), ("regimes", tag.regimes)):
        if value is not None and tag.batch is not BatchControl.SCRIPT:
            raise TagError(f"'{key}' says how the script changes its batch size by itself: write batch=own with it")
    if tag.adapts is AdaptationRule.STATIC and (tag.regimes or 1) > 1:
        raise TagError(
            f"'regimes={tag.regimes}' does not suit adapts=static, by which the batch size never changes: "
            "name the rule, or leave regimes out"
        )


BATCHES: Mapping[str, BatchControl] = {
    "adaptive": BatchControl.SCHEDULER,
    "fixed": BatchControl.FIXED,
    "own": BatchControl.SCRIPT,
}
"""Who may change the batch size, by the values of ``batch``."""

KEYS: Mapping[str, Callable[[str, str], object]] = {
    "min_gpus": _integer(_MAX_COUNT),
    "max_gpus": _integer(_MAX_COUNT),
    "sizes": _sizes,
    "preempt": _preempt,
    "weight": _weight,
    "max_nodes": _integer(_MAX_COUNT),
    "gpu_types": _gpu_types,
    "total_steps": _integer(_MAX_STEPS),
    "slo": _slo,
    "model": _model,
    "trials": _yes_or_no,
    "batch": _batch,
    "adapts": _adapts,
    "regimes": _integer(MAX_REGIMES),
    "app": _app,
    "tuner": _tuner,
}
FIELDS: Mapping[str, str] = {"slo": "slo_seconds"}
"""Names of ``Tag``'s fields, by key, where they differ."""
