"""Training whose batch size changes while it runs, on top of a table (Shockwave, NSDI 2023, sections 2 and 8).

A job's training is a sequence of *regimes*: consecutive epochs with one batch size. The regimes follow from the job's
mode: static, Accordion (Agarwal et al., MLSys 2021: small batches in critical regimes, the largest elsewhere), or
gradient noise scale (McCandlish et al., 2018: the batch doubles as the noise grows). The epochs at which the noise of a
model grows were measured by Shockwave's authors, and are those of its public artifact.
"""

from __future__ import annotations

import enum
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self

from metasched.core.batching import AdaptationRule, BatchControl, Batching, BatchRegime
from metasched.core.errors import MetaschedError
from metasched.core.model import Placement, Speed
from metasched.throughput.throughput_table import TableSpeed, ThroughputTable, table_speed
from metasched.throughput.training import Pace, Training

CRITICAL_FRACTION = 0.3
"""The first fraction of a job's epochs, in which Accordion always uses the small batch, for the model's accuracy."""


class UnknownFamilyError(MetaschedError):
    """The name of a model is not ``family (batch size N)``, or the family's data set is not known."""

    def __init__(self, model: str) -> None:
        known = ", ".join(sorted(FAMILIES))
        super().__init__(f"{model!r} is not 'family (batch size N)' with one of the families {known}")


class Mode(enum.Enum):
    """How a job's batch size adapts."""

    STATIC = "static"
    ACCORDION = "accordion"
    GNS = "gns"


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """Models that differ in the batch size only.

    Attributes:
        samples: the samples of an epoch.
        largest: the largest batch size that adaptation scales to; None where the batch size is never adapted.
        critical: whether an epoch is in a critical regime of Accordion, by epoch and first batch size; None for always.
    """

    samples: int
    largest: int | None = None
    critical: Callable[[int, int], bool] | None = None

    def steps(self, batch: int) -> int:
        """Optimizer steps in an epoch."""
        return math.ceil(self.samples / batch)


def _head(length: Mapping[int, int], *spans: range) -> Callable[[int, int], bool]:
    """A rule: critical for the first ``length`` epochs, by first batch size (10 by default), and in these spans."""
    return lambda epoch, batch: epoch < length.get(batch, 10) or any(epoch in span for span in spans)


FAMILIES: Mapping[str, ModelFamily] = {
    "ResNet-18": ModelFamily(50_000, 256, _head({256: 20}, range(150, 160), range(250, 260))),
    "ResNet-50": ModelFamily(100_000, 128, lambda epoch, _: epoch % 30 in range(10)),
    "Transformer": ModelFamily(10_000),
    "LM": ModelFamily(59_675, 80, _head({})),
    "Recommendation": ModelFamily(117_907, 8192, _head({512: 30, 1024: 30, 2048: 40}, range(60, 70), range(80, 90))),
    "CycleGAN": ModelFamily(6_287),
    "A3C": ModelFamily(4),
}
"""The families by name, as in Shockwave's tables."""

DOUBLINGS: Mapping[tuple[str, int, int], tuple[int, ...]] = {
    ("ResNet-18", 16, 1): (31, 41, 51, 71),
    ("ResNet-18", 32, 1): (21, 31, 51),
    ("ResNet-18", 64, 1): (11, 31),
    ("ResNet-18", 128, 1): (11,),
    ("ResNet-18", 16, 2): (21, 31, 91, 111),
    ("ResNet-18", 32, 2): (11, 21, 41),
    ("ResNet-18", 64, 2): (21, 41),
    ("ResNet-18", 128, 2): (41,),
    ("ResNet-18", 16, 4): (11, 21, 81, 91),
    ("ResNet-18", 32, 4): (21, 31, 61),
    ("ResNet-18", 64, 4): (11, 61),
    ("ResNet-18", 128, 4): (11,),
    ("ResNet-50", 64, 1): (101,),
    ("ResNet-50", 32, 2): (101, 111),
    ("ResNet-50", 64, 2): (81,),
    ("ResNet-50", 32, 4): (131, 221),
    ("ResNet-50", 64, 4): (191,),
    ("LM", 5, 1): (31, 41, 61, 71),
    ("LM", 10, 1): (11, 21, 41),
    ("LM", 20, 1): (11, 41),
    ("LM", 40, 1): (11,),
    ("LM", 5, 2): (31, 51, 61, 71),
    ("LM", 10, 2): (11, 31, 41),
    ("LM", 20, 2): (31, 41),
    ("LM", 40, 2): (11,),
    ("LM", 5, 4): (11, 31, 71, 91),
    ("LM", 10, 4): (11, 31, 61),
    ("LM", 20, 4): (11, 61),
    ("LM", 40, 4): (61,),
    ("Recommendation", 512, 1): (21, 41, 71, 91),
    ("Recommendation", 1024, 1): (21, 51, 91),
    ("Recommendation", 2048, 1): (21, 41),
    ("Recommendation", 4096, 1): (41,),
}
"""The epochs, from 0, from which on the gradient noise allows twice the batch, by family, first batch and GPUs."""


class Regime(NamedTuple):
    """Consecutive epochs with one batch size; ``end`` is the first epoch after them, from 0."""

    batch: int
    end: int


def parse_model(model: str) -> tuple[str, int]:
    """The family and the batch size of a model's name ``family (batch size N)``.

    Raises:
        UnknownFamilyError: the name is not of that form, or the family is not known.
    """
    family, _, rest = model.partition(" (batch size ")
    batch = rest.removesuffix(")")
    if family not in FAMILIES or not batch.isdecimal() or int(batch) < 1:
        raise UnknownFamilyError(model)
    return family, int(batch)


def model_name(family: str, batch: int) -> str:
    """The name of a family's model at a batch size, as in throughput tables."""
    return f"{family} (batch size {batch})"


def batch_at(mode: Mode, family: str, batch: int, gpus: int, *, epoch: int, epochs: int) -> int:
    """The batch size in one epoch of a job of ``epochs`` epochs that begins with ``batch``."""
    found = FAMILIES[family]
    if found.largest is None or batch >= found.largest or mode is Mode.STATIC:
        return batch
    if mode is Mode.ACCORDION:
        small = epoch <= CRITICAL_FRACTION * epochs or found.critical is None or found.critical(epoch, batch)
        return batch if small else found.largest
    doubled = bisect_right(DOUBLINGS.get((family, batch, gpus), ()), epoch)
    return min(batch << doubled, found.largest)


def regimes(mode: Mode, family: str, batch: int, gpus: int, epochs: int) -> tuple[Regime, ...]:
    """The regimes of a job of ``epochs`` epochs that begins with ``batch``, in order."""
    found: list[Regime] = []
    each = (batch_at(mode, family, batch, gpus, epoch=epoch, epochs=epochs) for epoch in range(epochs))
    for size, same in itertools.groupby(each):
        found.append(Regime(size, (found[-1].end if found else 0) + sum(1 for _ in same)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class RegimeTraining:
    """A job with regimes: a ``Training``.

    Its steps are those of its first regime: an epoch is the same number of them at every batch size.

    Attributes:
        table: the throughput table.
        mode: how the batch size adapts.
        family: the name of the model family.
        total: steps in all; the last epoch may be incomplete.
        regimes: the regimes, in order.
        ends: steps at the end of each regime, in order.
    """

    table: ThroughputTable
    mode: Mode
    family: str
    total: float
    regimes: tuple[Regime, ...]
    ends: tuple[float, ...]

    @classmethod
    def of(cls, table: ThroughputTable, mode: Mode, model: str, gpus: int, total: float) -> Self:
        """A job that begins as ``model`` and would take ``total`` steps at its first batch size.

        Raises:
            UnknownFamilyError: the model is not known.
        """
        family, batch = parse_model(model)
        steps = FAMILIES[family].steps(batch)
        planned = regimes(mode, family, batch, gpus, math.ceil(total / steps))
        known: list[Regime] = []
        for one in planned:
            # A batch size that was not measured cannot be simulated: the regime before is extended.
            measured = not known or (model_name(family, one.batch), gpus) in table.job_types
            known.append(one if measured else Regime(known.pop().batch, one.end))
        return cls(table, mode, family, total, tuple(known), tuple(float(one.end * steps) for one in known))

    def pace(self, done: float, placement: Placement, co_runner: Training | None = None) -> Pace:
        """The speed until the regime ends; 0.0 with a co-runner, because co-location was not measured."""
        now = self.regime(done)
        until = self.ends[now] if now + 1 < len(self.ends) else math.inf
        if placement.gpu_type is None or co_runner is not None:
            return Pace(0.0, math.inf)
        speed = self._known(now).steps_per_second(placement.gpu_type, placement.spread)
        return Pace(speed or 0.0, until)

    def known(self, done: float) -> Speed:
        """The table's speed in the present regime; policies do not know the regimes to come."""
        return self._known(self.regime(done))

    def reported_batching(self, done: float) -> Batching:
        """The batch size as the trainer has reported it after ``done`` steps, with what its user declares.

        The user declares the rule and the largest batch, and no number of regimes, which would tell the future.
        """
        now = self.regime(done)
        so_far = zip(self.regimes[: now + 1], (0.0, *self.ends), strict=False)
        first = self.regimes[0].batch
        return Batching(
            first,
            BatchControl.FIXED if self.mode is Mode.STATIC else BatchControl.SCRIPT,
            global_batch=self.regimes[now].batch,
            max_batch=None if self.mode is Mode.STATIC else max(FAMILIES[self.family].largest or first, first),
            regimes=tuple(BatchRegime(one.batch, began) for one, began in so_far),
            adapts=AdaptationRule(self.mode.value),
            most_regimes=1 if self.mode is Mode.STATIC else None,
        )

    @property
    def batch_speeds(self) -> Mapping[int, TableSpeed]:
        """The table's speeds by batch size, in their steps: of the first one, its doublings, and the largest one."""
        first = self.regimes[0].batch
        most = max(FAMILIES[self.family].largest or first, first)
        return table_batch_speeds(self.table, self.family, first, most)

    def regime(self, done: float) -> int:
        """The index of the regime after ``done`` steps."""
        return min(bisect_right(self.ends, done), len(self.ends) - 1)

    def _known(self, number: int) -> TableSpeed:
        family = FAMILIES[self.family]
        batch = self.regimes[number].batch
        step_ratio = family.steps(self.regimes[0].batch) / family.steps(batch)
        return table_speed(self.table, model_name(self.family, batch), step_ratio)


@lru_cache(maxsize=256)
def table_batch_speeds(table: ThroughputTable, family: str, first: int, most: int) -> Mapping[int, TableSpeed]:
    """The table's speeds by batch size, in their steps: of the first one, its doublings, and the largest one."""
    measured = {model for model, _ in table.job_types}
    batches = sorted({most, *(first << step for step in range((most // first).bit_length()))})
    return {batch: table_speed(table, name) for batch in batches if (name := model_name(family, batch)) in measured}
