"""Statistical efficiency of small models at several batches: predicted from the gradient noise, and measured.

    python -m contrib.reproductions.adaptive_batch [--batches N,N,...] [--seeds N] [--steps N] [--only NAME] [--json]

Each model trains at each batch for the same progress, with the trainer shim's measurement of the noise and rules for
the learning rate. The measured efficiency is the number of samples that the training at M0 needs until its loss on
unseen data is down to a target, divided by the number that a larger batch needs. The table repeats Figure 2 of Qiao
et al., "Pollux", OSDI 2021, for models that a CPU trains in seconds.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from contrib.benchmarks import common
from trainer_shim.adaptive_batch.goodput import gain
from trainer_shim.adaptive_batch.gradient_noise import MEASURE_EVERY, GradientNoise
from trainer_shim.adaptive_batch.lr_scaling import RULES, ScalingInputs, scaled_learning_rates
from trainer_shim.adaptive_batch.noise_averages import NoiseAverages
from trainer_shim.batch import plan_batch
from trainer_shim.data.plan_switch import PlanSwitch
from trainer_shim.data.sample_order import SampleOrder, micro_batches

DOCS = Path(__file__).parents[2] / "docs"
POINTS = 40  # evaluations of a training
TARGET = 0.6  # the part of the training at M0 after which its loss is the target
SMOOTHED = 5  # evaluations
LENGTH = 24  # characters of a sample of text


@dataclass(frozen=True)
class Task:
    """A model with its data and optimizer.

    Attributes:
        first_batch: M0 in samples.
        rule: the name of the rule for the learning rate.
        data: inputs and targets to train on, then inputs and targets of unseen samples.
        make: makes the model.
        optimizer: makes the optimizer of a model's parameters.
        loss: the mean loss of outputs and targets.
    """

    first_batch: int
    rule: str
    data: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    make: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Characters(nn.Module):
    """Predicts the next character of a text by a gated recurrent unit."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.table = nn.Embedding(letters, 24)
        self.recurrent = nn.GRU(24, 64, batch_first=True)
        self.head = nn.Linear(64, letters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return scores of shape (n, letters, length) for characters of shape (n, length)."""
        found: torch.Tensor = self.head(self.recurrent(self.table(text))[0])
        return found.transpose(1, 2)


def text_task() -> Task:
    """A recurrent model of the characters of this repository's documentation, trained by Adam."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md")))
    letters = sorted(set(text))
    numbers = {letter: number for number, letter in enumerate(letters)}
    codes = torch.tensor([numbers[letter] for letter in text[: len(text) // LENGTH * LENGTH]])
    windows = codes.view(-1, LENGTH)
    windows = windows[torch.randperm(len(windows), generator=torch.Generator().manual_seed(1))]
    seen, unseen = windows[:-512], windows[-512:]
    return Task(
        first_batch=16,
        rule="sqrt",
        data=(seen[:, :-1], seen[:, 1:], unseen[:, :-1], unseen[:, 1:]),
        make=lambda: Characters(len(letters)),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
        loss=functional.cross_entropy,
    )


def teacher_task() -> Task:
    """A perceptron that learns the classes which another one has drawn, trained by SGD."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(8704, 24, generator=generator)
    hidden = (inputs @ torch.randn(24, 32, generator=generator) / 24**0.5).tanh()
    scores = 3 * hidden @ torch.randn(32, 8, generator=generator) / 32**0.5
    classes = torch.multinomial(scores.mul(2).softmax(dim=1), 1, generator=generator).squeeze(1)
    return Task(
        first_batch=16,
        rule="adascale",
        data=(inputs[:-512], classes[:-512], inputs[-512:], classes[-512:]),
        make=lambda: nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        loss=functional.cross_entropy,
    )


TASKS: dict[str, Callable[[], Task]] = {"text": text_task, "teacher": teacher_task}


@dataclass
class Training:
    """One training.

    Attributes:
        points: the evaluations: progress, samples, loss on unseen data.
        noise_scales: the noise scale after each step, from the first one on in which it is known.
    """

    points: list[tuple[float, float, float]] = field(default_factory=list)
    noise_scales: list[float] = field(default_factory=list)

    @property
    def smoothed(self) -> list[tuple[float, float, float]]:
        """The evaluations as means over SMOOTHED neighbours each: one alone is too rough for a target."""
        windows = [self.points[start : start + SMOOTHED] for start in range(len(self.points) - SMOOTHED + 1)]
        return [(_average(window, 0), _average(window, 1), _average(window, 2)) for window in windows]

    def samples_until(self, loss: float) -> tuple[float, float] | None:
        """Return progress and samples until the loss is down to `loss` first, interpolated; None if it never is."""
        before: tuple[float, float, float] | None = None
        for after in self.smoothed:
            if after[2] <= loss:
                if before is None:
                    return after[:2]
                part = (before[2] - loss) / (before[2] - after[2])
                return before[0] + part * (after[0] - before[0]), before[1] + part * (after[1] - before[1])
            before = after
        return None


def train(task: Task, batch: int, seed: int, steps: int) -> Training:
    """Train for `steps` steps at M0, in steps of `batch` samples, of which M0 are processed at once."""
    torch.manual_seed(seed)
    inputs, targets, unseen_inputs, unseen_targets = task.data
    model, found, averages = task.make(), Training(), NoiseAverages()
    optimizer = task.optimizer(model.parameters())
    noise, rule = GradientNoise([optimizer]), RULES[task.rule]
    plan = plan_batch(batch, 1, task.first_batch)
    progress, samples, step, epoch = 0.0, 0, 0, 0
    while progress < steps:
        order = SampleOrder(seed, len(inputs), shuffle=True).epoch_indices(epoch)
        epoch += 1
        for micro in micro_batches(order, 0, PlanSwitch(plan), 0, drop_last=True):
            noise.begin_pass(step, micro)
            loss = task.loss(model(inputs[micro.indices]), targets[micro.indices]) * micro.weight
            loss.backward()  # type: ignore[no-untyped-call]
            noise.end_pass(None)
            if not micro.last:
                continue
            sums = noise.finish_step(step)
            measured = sums and sums.measurement(batch)
            if measured:
                averages = averages.updated(*measured, MEASURE_EVERY * batch / task.first_batch)
            scale = averages.noise_scale
            factor = rule(ScalingInputs(task.first_batch, batch, scale, progress))
            with scaled_learning_rates([optimizer], factor):
                optimizer.step()
            optimizer.zero_grad()
            step, samples = step + 1, samples + batch
            progress += 1.0 if scale is None else gain(task.first_batch, batch, scale)
            found.noise_scales += [] if scale is None else [scale]
            if progress >= (len(found.points) + 1) * steps / POINTS:
                with torch.no_grad():
                    value = task.loss(model(unseen_inputs), unseen_targets).item()
                found.points.append((progress, samples, value))
            if progress >= steps:
                break
    return found


def compare(task: Task, batches: Sequence[int], seeds: int, steps: int) -> dict[int, dict[str, float | None]]:
    """Return the efficiencies and final losses by batch, as means over the seeds, with the loss's deviation."""
    trainings = {
        batch: [train(task, batch, seed, steps) for seed in range(seeds)]
        for batch in sorted({task.first_batch, *batches})
    }
    firsts = trainings[task.first_batch]
    target = statistics.mean(first.smoothed[int(TARGET * len(first.smoothed))][2] for first in firsts)
    needed = [found[1] for first in firsts if (found := first.samples_until(target)) is not None]
    result: dict[int, dict[str, float | None]] = {}
    for batch, runs in trainings.items():
        until = [found for run in runs if (found := run.samples_until(target)) is not None]
        foreseen = [
            statistics.mean(gain(task.first_batch, batch, scale) for scale in first.noise_scales)
            * (task.first_batch / batch)
            for first in firsts
        ]
        losses = [run.points[-1][2] for run in runs]
        result[batch] = {
            "noise_scale": statistics.mean(statistics.median(run.noise_scales) for run in runs),
            "from_first_batch": statistics.mean(foreseen),
            "predicted": _mean([progress * task.first_batch / samples for progress, samples in until]),
            "measured": statistics.mean(needed) / statistics.mean(found[1] for found in until) if until else None,
            "final_loss": statistics.mean(losses),
            "final_loss_deviation": statistics.stdev(losses) if len(losses) > 1 else None,
        }
    return result


def main(given: Sequence[str] | None = None) -> int:
    """Train, and print the table; returns the exit status."""
    parser = common.arguments(__doc__ or "")
    common.add_numbers(parser, "--batches", [32, 64, 128], "global batches besides M0")
    parser.add_argument("--seeds", type=common.positive, default=3, help="trainings of each batch")
    parser.add_argument("--steps", type=common.positive, default=2000, help="steps at M0 of a training")
    parser.add_argument("--only", choices=TASKS, help="one model")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    print("| model | rule | batch | phi | efficiency by phi at M0 | predicted | measured | final loss |")
    print("|---|---|---|---|---|---|---|---|")
    result = {}
    for name in [options.only] if options.only else TASKS:
        task = TASKS[name]()
        result[name] = compare(task, options.batches, options.seeds, options.steps)
        for batch, row in result[name].items():
            cells = [_cell(row[key], 2) for key in ("from_first_batch", "predicted", "measured")]
            loss = f"{_cell(row['final_loss'], 3)} +- {_cell(row['final_loss_deviation'], 3)}"
            shown = " | ".join([name, task.rule, str(batch), _cell(row["noise_scale"], 0), *cells, loss])
            print(f"| {shown} |", flush=True)
    common.finish(result, as_json=options.json)
    return 0


def _average(points: Sequence[Sequence[float]], column: int) -> float:
    return statistics.mean(point[column] for point in points)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.mean(values) if values else None


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
