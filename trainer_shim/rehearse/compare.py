"""The checks: which values of the disturbed run are equal to those of the undisturbed run."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from trainer_shim.rehearse.state import Difference, differ

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainer_shim.rehearse.history import History, Step

_NAMED = 3  # differing leaves that are named


class Verdict(str, Enum):
    """The outcome of a comparison, the best first."""

    BITWISE = "equal bitwise"
    TOLERANCE = "equal within tolerance"
    DIFFERS = "differs"


class Check(NamedTuple):
    """The comparison of one value of the two runs.

    Attributes:
        name: the compared value.
        verdict: the outcome.
        text: the outcome in words.
        step: the first step that differs, None if that is not known.
    """

    name: str
    verdict: Verdict
    text: str
    step: int | None = None


def compare(undisturbed: History, disturbed: History, tolerance: float) -> list[Check]:
    """Return all checks: steps, samples, learning rate, losses, then the final state by tracked name."""
    return [
        _check_count(undisturbed, disturbed),
        _check_samples(undisturbed, disturbed),
        _check_values("learning rate", undisturbed, disturbed, tolerance, lambda step: step.lr),
        _check_values("loss of each step", undisturbed, disturbed, tolerance, lambda step: [step.loss]),
        *(
            _check_state(name, undisturbed.state.get(name, {}), disturbed.state.get(name, {}), tolerance)
            for name in sorted({*undisturbed.state, *disturbed.state})
        ),
    ]


def first_inexact_step(undisturbed: History, disturbed: History) -> tuple[int, Difference] | None:
    """Return the first step whose losses are not bitwise equal, and their difference; None without such a step."""
    for number in sorted(undisturbed.steps.keys() & disturbed.steps.keys()):
        found = differ(undisturbed.steps[number].loss, disturbed.steps[number].loss)
        if found.gap != 0:
            return number, found
    return None


def _check_count(undisturbed: History, disturbed: History) -> Check:
    ours, theirs = max(undisturbed.steps), max(disturbed.steps)
    if ours == theirs:
        return Check("steps", Verdict.BITWISE, f"{ours}")
    return Check("steps", Verdict.DIFFERS, f"{ours} undisturbed, {theirs} disturbed", min(ours, theirs) + 1)


def _check_samples(undisturbed: History, disturbed: History) -> Check:
    ours, theirs = _seen(undisturbed.steps.values()), _seen(disturbed.steps.values())
    if ours == theirs:
        epochs = Counter(epoch for epoch, _ in ours)
        all_indices = set(range(undisturbed.samples or 0))
        once = set(ours.values()) == {1} and all(
            epochs[epoch] == undisturbed.samples and all_indices == {index for of, index in ours if of == epoch}
            for epoch in epochs
        )
        text = (
            f"each of the {undisturbed.samples} exactly once in every epoch" if once else "the same ones in every epoch"
        )
    else:
        lost, repeated = sorted((ours - theirs).elements()), sorted((theirs - ours).elements())
        parts = []
        for description, found in (("lost", lost), ("too many", repeated)):
            if found:
                epoch, index = found[0]
                parts.append(f"{len(found)} {description}, the first in epoch {epoch}: sample {index}")
        text = "; ".join(parts)
    step = next(
        (
            number
            for number in sorted(undisturbed.steps.keys() & disturbed.steps.keys())
            if undisturbed.steps[number].indices != disturbed.steps[number].indices
        ),
        None,
    )
    if ours == theirs and step is not None:
        text = f"the same in every epoch, in another order from step {step} on"
    return Check("samples", Verdict.BITWISE if ours == theirs and step is None else Verdict.DIFFERS, text, step)


def _seen(steps: Iterable[Step]) -> Counter[tuple[int, int]]:
    return Counter((step.epoch, index) for step in steps for index in step.indices)


def _check_values(
    name: str, undisturbed: History, disturbed: History, tolerance: float, values: Callable[[Step], list[float]]
) -> Check:
    worst, exact_to = Difference(0.0, 1.0, ""), None
    common = sorted(undisturbed.steps.keys() & disturbed.steps.keys())
    for number in common:
        ours, theirs = values(undisturbed.steps[number]), values(disturbed.steps[number])
        if len(ours) != len(theirs):
            return Check(name, Verdict.DIFFERS, f"{len(ours)} and {len(theirs)} of them at step {number}", number)
        for one, other in zip(ours, theirs):
            found = differ(one, other)
            if not found.within(tolerance):
                text = (
                    f"first at step {number}{_where(disturbed, number)}: {one:.8g} undisturbed, {other:.8g} disturbed"
                )
                return Check(name, Verdict.DIFFERS, text, number)
            if found.gap and exact_to is None:
                exact_to = number - 1
            worst = max(worst, found, key=lambda difference: difference.gap or 0.0)
    if exact_to is None:
        return Check(name, Verdict.BITWISE, f"all {len(common)} steps")
    text = f"at most {worst.gap:.2g} apart; bitwise up to step {exact_to}"
    return Check(name, Verdict.TOLERANCE, text)


def _where(history: History, number: int) -> str:
    """Return the place of a step in its run, in words that follow its number."""
    start = history.steps[number].start
    if history.undisturbed_until(number):
        return ", before anything was disturbed"
    after = number - history.resumed_from[start - 1]
    return f" (start {start}, world size {history.starts[start - 1].size}, its step {after})"


def _check_state(name: str, undisturbed: dict[str, Any], disturbed: dict[str, Any], tolerance: float) -> Check:
    title = f"final {name}"
    missing = sorted(undisturbed.keys() ^ disturbed.keys())
    if missing:
        return Check(title, Verdict.DIFFERS, f"only one of the two has {', '.join(missing[:_NAMED])}")
    found = {path: differ(undisturbed[path], disturbed[path]) for path in undisturbed}
    apart = {path: difference for path, difference in found.items() if not difference.within(tolerance)}
    if apart:
        # What cannot be compared comes first, then the farthest apart.
        order = sorted(apart, key=lambda path: -1.0 if (gap := apart[path].gap) is None else 1 / gap)
        named = [f"{path} ({apart[path].text})" for path in order[:_NAMED]]
        more = f" and {len(apart) - _NAMED} more" if len(apart) > _NAMED else ""
        return Check(title, Verdict.DIFFERS, f"{len(apart)} of {len(found)}: {', '.join(named)}{more}")
    inexact = {path: difference for path, difference in found.items() if difference.gap}
    if not inexact:
        return Check(title, Verdict.BITWISE, f"all {len(found)} values")
    worst = max(inexact, key=lambda path: inexact[path].gap or 0.0)
    text = f"{len(inexact)} of {len(found)} at most {inexact[worst].gap:.2g} apart ({worst})"
    return Check(title, Verdict.TOLERANCE, text)
