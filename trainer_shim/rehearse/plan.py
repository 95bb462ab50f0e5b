"""The plan of the disturbed run: an exact step for every stop and kill, drawn from a seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from trainer_shim.rehearse.errors import RehearsalError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Event(NamedTuple):
    """A stop or a kill: after optimizer step `step`, `rank` receives the preemption signal or, with `kill`, SIGKILL."""

    step: int
    rank: int
    kill: bool


class Start(NamedTuple):
    """One start of the script at world size `size`, and the event that ends it; None for no event."""

    size: int
    event: Event | None


def plan_disturbance(sizes: Sequence[int], kills: int, last_steps: Sequence[int], seed: int) -> list[Start]:
    """Plan the starts that lead through all `sizes`: a stop before each next size, `kills` kills in between.

    Args:
        sizes: world sizes, the first being that of the undisturbed run.
        kills: the number of kills; the start after a kill has the same size.
        last_steps: the last step of each epoch of the undisturbed run, ascending. One of the stops comes after an
            epoch's last step, where scripts often evaluate or save.
        seed: the seed of the random choice.

    Raises:
        RehearsalError: the training has too few steps for that many events.
    """
    stops, total = len(sizes) - 1, last_steps[-1]
    if total <= stops + kills:
        raise RehearsalError(
            f"the script trains {total} steps, too few for {stops} stops and {kills} kills: "
            "let it train longer, or ask for fewer --sizes and --kills"
        )
    draw = random.Random(seed)  # noqa: S311  a rehearsal must be repeatable, not secret
    ends = draw.sample(last_steps[:-1], 1) if stops and len(last_steps) > 1 else []
    others = draw.sample(sorted(set(range(1, total)).difference(ends)), stops + kills - len(ends))
    killing = others[:kills]

    starts, left = [], list(sizes)
    for step in sorted([*ends, *others]):
        starts.append(Start(left[0], Event(step, draw.randrange(left[0]), kill=step in killing)))
        if step not in killing:
            left.pop(0)
    return [*starts, Start(left[0], None)]
