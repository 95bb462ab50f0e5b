"""The likely causes of a difference between two runs, in words that name the fix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_shim.rehearse.compare import Check, Verdict, first_inexact_step

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trainer_shim.rehearse.history import History

_ROUNDING = 1e-2  # fraction of the tolerance up to which a first difference counts as rounding


def likely_causes(undisturbed: History, disturbed: History, checks: list[Check], tolerance: float) -> list[str]:
    """Return the likely causes in words, the likeliest first; empty where nothing differs."""
    differing = {check.name: check for check in checks if check.verdict is Verdict.DIFFERS}
    if not differing:
        return []
    first = first_inexact_step(undisturbed, disturbed)
    if first is not None and disturbed.undisturbed_until(first[0]):
        not_repeatable = (
            f"The two runs differ already at step {first[0]}, before anything was disturbed, so the script does not "
            "repeat itself: it depends on the time, on a generator that it seeds from the system, or on the order of "
            "threads or loader workers. Make that repeatable, then rehearse again."
        )
        return [not_repeatable]
    found = _known_causes(disturbed, differing)
    if found:
        return found
    gradient = _uneven_gradient(disturbed, differing)
    if gradient:
        return [gradient]
    if first is not None and first[1].within(tolerance * _ROUNDING):
        rounding = (
            f"The difference begins as rounding (at step {first[0]}) and grows, as sums are added in another order at "
            "another size. To be sure, rehearse in float64, or at one size (--sizes 2,2,2), or fewer --steps."
        )
        return [rounding]
    unknown = (
        "Something that the training depends on is not in ctx.track(...) and starts anew with the script: an average, "
        "a counter, a buffer, a generator of its own, or data that is made without a fixed seed."
    )
    return [unknown]


def _uneven_gradient(disturbed: History, differing: Mapping[str, Check]) -> str | None:
    """Return the cause in words if the gradient of a step depends on the world size, None without signs of that."""
    sizes = [start.size for start in disturbed.starts]
    if len(set(sizes)) > 1 and not any(step.indices for step in disturbed.steps.values()):
        return (
            "The script never calls ctx.backward(loss), and so gives micro-batches of different sizes the same weight: "
            "call it instead of loss.backward()."
        )
    loss = differing.get("loss of each step")
    if loss is None or loss.step is None:
        return None
    number = disturbed.steps[loss.step].start
    second = loss.step - disturbed.resumed_from[number - 1] == 2  # noqa: PLR2004  the first loss that shows the effect of a step
    if not second or sizes[number - 1] == sizes[0]:
        return None
    return (
        f"The gradient of a step depends on the world size: the first step of start {number} had the same loss, and "
        "another effect. The model is not wrapped (ctx.wrap), zero_grad() or loss.backward() is the script's own, or "
        "the loss is not the mean over the micro-batch."
    )


def _known_causes(disturbed: History, differing: Collection[str]) -> list[str]:
    """Return the causes that show in the probe's remarks, or in the set of differing checks."""
    topics: dict[str, list[str]] = {}
    for remark in disturbed.remarks:
        topic, _, detail = remark.partition(": ")
        topics.setdefault(topic, []).append(detail)
    resized = len({start.size for start in disturbed.starts}) > 1
    batches = list(dict.fromkeys(size for size in disturbed.global_batches if size is not None))
    found = []
    if len(batches) > 1:
        found.append(
            f"The global batch changes with the world size ({', '.join(map(str, batches))}): it is computed from "
            "ctx.size. Give ctx.loader(...) one global_batch for all sizes, and max_per_gpu for what fits on a GPU."
        )
    if "clipping" in topics:
        found.append(
            f"{_some(topics['clipping'])} is called after micro-batches whose gradients are not complete: call it "
            "where ctx.boundary is true, right before ctx.step(optimizer)."
        )
    if "averaging" in topics:
        found.append(
            "Averaged weights are updated after each micro-batch, so as often as the world size says: call "
            f"{_some(topics['averaging'])} where ctx.step(optimizer) has returned True."
        )
    found += [
        f"The script has a {what} that is not in ctx.track(...): its state is lost at every stop. Add it there."
        for what in topics.get("untracked", [])
    ]
    if len(batches) <= 1 and ("samples" in differing or "steps" in differing):
        found.append(
            "The two runs did not train on the same samples: the script leaves its loop over ctx.loader(...) by a "
            "count or a condition of its own, which begins anew at every start. Count by ctx.step_count."
        )
    if "learning rate" in differing and not topics.get("untracked") and len(batches) <= 1:
        found.append(
            "The learning rate depends on something that starts anew with the script, such as a counter of its own: "
            "compute it from ctx.step_count, or track its schedule."
        )
    if resized and "batchnorm" in topics:
        found.append(
            f"BatchNorm ({_some(topics['batchnorm'])}) sees micro-batches, whose size depends on the world size, and "
            "rank 0's running statistics are saved: use GroupNorm or LayerNorm; or a max_per_gpu that divides every "
            "rank's share, with ctx.average_statistics(model) for the running statistics."
        )
    if resized and "dropout" in topics:
        found.append(
            f"Dropout ({_some(topics['dropout'])}) draws one mask for each micro-batch, whose bounds depend on the "
            "world size: the result is another draw of the same training. To compare the rest, rehearse with dropout "
            "0, or at one size (--sizes 2,2,2)."
        )
    return found


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
