"""What is done to the disturbed run: an exact step for every stop and kill, drawn from a seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from trainer_shim.rehearse.errors import RehearsalError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Event(NamedTuple):
    """After optimizer step `step`, `rank` gets the preemption signal or, where `kill`, dies by SIGKILL."""

    step: int
    rank: int
    kill: bool


class Start(NamedTuple):
    """One start of the script at world size `size`, and how it ends; None for by itself."""

    size: int
    event: Event | None


def plan_disturbance(sizes: Sequence[int], kills: int, last_steps: Sequence[int], seed: int) -> list[Start]:
    """Plan the starts that lead through all `sizes`: a stop before each next size, `kills` kills in between.

    Args:
        sizes: world sizes, the first being that of the undisturbed run.
        kills: how many times a rank is killed; the next start has the same size.
        last_steps: the last step of each epoch of the undisturbed run, ascending. One of the stops comes after an
            epoch's last step, because a script does its own things there.
        seed: of the choice.

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
