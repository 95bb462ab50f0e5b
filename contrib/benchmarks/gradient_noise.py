"""The cost of measuring the gradient noise on one GPU: time and memory of a ResNet-18's steps.

See docs/researcher/BENCHMARKS.md.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from contrib.benchmarks import common
from contrib.benchmarks.shim_overhead_trainer import NOISE_METHODS, SpentTime
from trainer_shim.adaptive_batch.gradient_noise import MEASURE_EVERY, GradientNoise, NoiseMeasurement
from trainer_shim.batch import plan_batch
from trainer_shim.data.plan_switch import PlanSwitch
from trainer_shim.data.sample_order import micro_batches

BATCH, SIDE, CLASSES = 64, 128, 100
MEDIAN_ERROR = 1.25  # the standard error of a median, compared with that of a mean
PASSES = {"steps compared": BATCH, "two passes": BATCH // 2}
"""The most samples of a pass, by the way in which the noise is measured."""
OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "fused Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, fused=True),
}


class Residual(nn.Module):
    """A basic block of ResNet-18."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.around: nn.Module = nn.Identity()
        if stride > 1:
            self.around = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        inner = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(inner)) + self.around(x))


def resnet18() -> nn.Module:
    """Return a ResNet-18, whose 62 parameters have 11 million elements."""
    layers = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for before, after, stride in [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]:
        layers += [Residual(before, after, stride), Residual(after, after, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


class Training:
    """A training of a ResNet-18 on random images.

    Args:
        optimizer: a name in OPTIMIZERS.
        max_per_gpu: the most samples of a pass.
        batch_bytes: for each measurement of the noise, its `batch_bytes`; none for a training without one.
        device: where it trains.

    Attributes:
        noises: the measurements of the noise.
    """

    def __init__(
        self, optimizer: str, max_per_gpu: int, *batch_bytes: int | None, device: torch.device | str = "cuda"
    ) -> None:
        torch.manual_seed(1)
        self._net = resnet18().to(device)
        self._optimizer = OPTIMIZERS[optimizer](self._net.parameters())
        self.noises = [GradientNoise([self._optimizer], batch_bytes=each) for each in batch_bytes]
        self._data = torch.randn(BATCH, 3, SIDE, SIDE, device=device)
        self._targets = torch.randint(CLASSES, (BATCH,), device=device)
        self._plan = plan_batch(BATCH, 1, max_per_gpu)
        self._step = 0

    def compute_gradients(self) -> None:
        """Run the backward passes of a step."""
        for micro in micro_batches(torch.arange(BATCH), 0, PlanSwitch(self._plan), 0):
            part = slice(micro.position, micro.position + micro.samples)
            loss = functional.cross_entropy(self._net(self._data[part]), self._targets[part]) * micro.weight
            for noise in self.noises:
                noise.begin_pass(self._step, micro)
            loss.backward()  # type: ignore[no-untyped-call]
            for noise in self.noises:
                noise.end_pass(None)

    def finish_step(self) -> list[NoiseMeasurement | None]:
        """Step the optimizer, and return what was measured."""
        found = [noise.finish_step(self._step) for noise in self.noises]
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._step += 1
        return [None if sums is None else sums.measurement(BATCH) for sums in found]

    def run_block(self) -> list[NoiseMeasurement | None]:
        """Train MEASURE_EVERY steps, the last of which is measured, and return its measurements."""
        for _ in range(MEASURE_EVERY):
            self.compute_gradients()
            found = self.finish_step()
        return found


def seconds_of_block(training: Training) -> float:
    """Return the seconds of a block of steps."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    training.run_block()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def host_seconds(optimizer: str, max_per_gpu: int, blocks: int) -> float:
    """Return the seconds of the host that a measurement takes, without the wait for the GPU."""
    training = Training(optimizer, max_per_gpu, None)
    training.run_block()
    spent = SpentTime(training.noises[0], *NOISE_METHODS, clock=time.perf_counter)
    for _ in range(blocks * MEASURE_EVERY):
        training.compute_gradients()
        torch.cuda.synchronize()
        training.finish_step()
    return spent.seconds / blocks


def peak_bytes(optimizer: str, max_per_gpu: int, *batch_bytes: int | None) -> int:
    """Return the most memory that a training of two blocks uses; the arguments are those of `Training`."""
    gc.collect()  # what an earlier training has left
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    training = Training(optimizer, max_per_gpu, *batch_bytes)
    training.run_block()
    torch.cuda.reset_peak_memory_stats()
    training.run_block()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measure(optimizer: str, max_per_gpu: int, pairs: int) -> dict[str, float]:
    """Return the figures of a row of the table."""
    plain, measured = Training(optimizer, max_per_gpu), Training(optimizer, max_per_gpu, None)
    for training in (plain, measured):
        training.run_block()  # chooses kernels
    times: list[tuple[float, float]] = []
    for pair in range(pairs):  # in alternating order
        if pair % 2:
            after = seconds_of_block(measured)
            times.append((seconds_of_block(plain), after))
        else:
            times.append((seconds_of_block(plain), seconds_of_block(measured)))
    del plain, measured
    ratios = [after / before - 1 for before, after in times]
    memory = peak_bytes(optimizer, max_per_gpu, None) - peak_bytes(optimizer, max_per_gpu)
    return {
        "plain_ms": 1000 * statistics.median(before for before, _ in times) / MEASURE_EVERY,
        "measured_ms": 1000 * statistics.median(after for _, after in times) / MEASURE_EVERY,
        "percent": 100 * statistics.median(ratios),
        "error_percent": 100 * MEDIAN_ERROR * statistics.stdev(ratios) / len(ratios) ** 0.5,
        "host_ms": 1000 * host_seconds(optimizer, max_per_gpu, max(pairs // 4, 1)),
        "megabytes": memory / 1e6,
    }


def print_profile(optimizer: str, max_per_gpu: int, rows: int) -> None:
    """Print torch.profiler's top entries of a block that is measured, and of one that is not."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    for words, batch_bytes in (("plain", []), ("measured", [None])):
        training = Training(optimizer, max_per_gpu, *batch_bytes)
        training.run_block()
        with torch.profiler.profile(activities=activities) as profile:
            seconds_of_block(training)
        print(f"\n{optimizer}, {max_per_gpu} samples a pass, {words}:")
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=rows, max_name_column_width=60))


def _several(text: str) -> int:
    return max(common.positive(text), 2)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--pairs", type=_several, default=40, help="pairs of blocks in a row of the table")
    parser.add_argument("--only", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS), help="names of optimizers")
    parser.add_argument("--profile", type=common.positive, metavar="ROWS", help="print torch.profiler's top entries")
    options = parser.parse_args(given)
    if not torch.cuda.is_available():
        parser.error("there is no GPU here")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.pairs} pairs of {MEASURE_EVERY} steps")
    print("| optimizer | noise | plain, ms | measured, ms | more | random error | host, ms | MB more |")
    print("|---|---|---|---|---|---|---|---|")
    result: list[dict[str, Any]] = []
    for name in options.only:
        for words, max_per_gpu in PASSES.items():
            found = measure(name, max_per_gpu, options.pairs)
            result.append({"optimizer": name, "noise": words, **found})
            milliseconds = f"{found['plain_ms']:.2f} | {found['measured_ms']:.2f}"
            percent = f"{found['percent']:+.2f} % | {found['error_percent']:.2f} %"
            costs = f"{found['host_ms']:.2f} | {found['megabytes']:.0f}"
            print(f"| {name} | {words} | {milliseconds} | {percent} | {costs} |", flush=True)
    if options.profile:
        for name in options.only:
            for max_per_gpu in PASSES.values():
                print_profile(name, max_per_gpu, options.profile)
    common.finish({"rows": result}, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
