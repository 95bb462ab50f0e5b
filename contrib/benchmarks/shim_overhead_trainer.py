"""The trainer of shim_overhead: steps of two kinds in turn, a large state saved often, or a long order of samples.

shim_overhead_trainer.py steps RESULT STEP_SECONDS BLOCK PAIRS
shim_overhead_trainer.py noise RESULT STEP_SECONDS BLOCKS {sgd|adam} PARAMETERS
shim_overhead_trainer.py saves RESULT MEGABYTES {pt|fsdp2} PAIRS
shim_overhead_trainer.py states MEGABYTES {pt|fsdp2}
shim_overhead_trainer.py order RESULT SAMPLES {shuffled|unshuffled}
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import trainer_shim
from trainer_shim.adaptive_batch.gradient_noise import MEASURE_EVERY
from trainer_shim.batch import plan_batch
from trainer_shim.data.plan_switch import PlanSwitch
from trainer_shim.data.sample_order import SampleOrder, micro_batches

if TYPE_CHECKING:
    from trainer_shim.session.context import Context

GLOBAL_BATCH, FEATURES, SAMPLES = 32, 256, 4096
MATRIX = torch.randn(128, 128)
NOISE_METHODS = ("begin_pass", "_measure_pending", "end_pass", "finish_step")
"""The methods of a `GradientNoise` in which its time is spent, apart from its short hooks."""


def make_net() -> nn.Module:
    """Return a network with the same initial weights in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 1))


def make_data() -> TensorDataset:
    """Return a data set in memory."""
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(SAMPLES, FEATURES, generator=generator), torch.randn(SAMPLES, 1, generator=generator)
    )


def forward(model: nn.Module, x: torch.Tensor, y: torch.Tensor, seconds: float) -> torch.Tensor:
    """Return the loss, after at least this number of seconds of computing."""
    until = time.perf_counter() + seconds
    loss = nn.functional.mse_loss(model(x), y)
    while time.perf_counter() < until:
        torch.mm(MATRIX, MATRIX)
    return loss


def plain_steps(seconds: float) -> Iterator[None]:
    """Train steps of a plain DDP script without end, one for each item."""
    model = nn.parallel.DistributedDataParallel(make_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = make_data()
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=GLOBAL_BATCH // dist.get_world_size(), sampler=sampler)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for x, y in loader:
            forward(model, x, y, seconds).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            yield
        epoch += 1


def shim_steps(ctx: Context, seconds: float) -> Iterator[None]:
    """Train the same steps by the shim, one for each item."""
    model = ctx.wrap(make_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = ctx.loader(make_data(), global_batch=GLOBAL_BATCH, seed=1)
    ctx.track(model=model, optimizer=optimizer)
    for _ in ctx.epochs(10**6):
        for x, y in loader:
            ctx.backward(forward(model, x, y, seconds))
            ctx.step(optimizer)
            yield


def measured(work: Iterator[None], steps: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of a number of steps, by a clock; by default the wall's."""
    started = clock()
    for _ in range(steps):
        next(work)
    return clock() - started


def time_steps(result: Path, seconds: float, block: int, pairs: int) -> None:
    """Time blocks of steps of both kinds, in pairs whose order alternates."""
    ctx = trainer_shim.init("checkpoints", checkpoint_every=1e9)
    work = {"plain": plain_steps(seconds), "shim": shim_steps(ctx, seconds)}
    for each in work.values():
        measured(each, 5)
    found: dict[str, list[float]] = {name: [] for name in work}
    cpu: dict[str, list[float]] = {name: [] for name in work}
    for pair in range(pairs):
        for name in ("plain", "shim") if pair % 2 else ("shim", "plain"):
            dist.barrier()
            before = time.process_time()
            found[name].append(measured(work[name], block))
            cpu[name].append(time.process_time() - before)
    if ctx.rank == 0:
        result.write_text(json.dumps({**found, "cpu": cpu}))
    dist.barrier()


def matrix_products(count: int) -> None:
    """Compute."""
    for _ in range(count):
        torch.mm(MATRIX, MATRIX)


def products_of(seconds: float) -> int:
    """Return how many products of matrices take this number of seconds of CPU time."""
    taken = []
    for _ in range(20):
        started = time.process_time()
        matrix_products(100)
        taken.append(time.process_time() - started)
    return max(round(100 * seconds / min(taken)), 1)


def adaptive_steps(ctx: Context, products: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> Iterator[None]:
    """Train steps of a training whose batch may adapt, one for each item."""
    loader = ctx.loader(make_data(), global_batch=GLOBAL_BATCH, seed=1, max_batch=2 * GLOBAL_BATCH, lr_scale="adascale")
    ctx.track(model=model, optimizer=optimizer)
    for _ in ctx.epochs(10**6):
        for x, y in loader:
            matrix_products(products)
            ctx.backward(nn.functional.mse_loss(model(x), y))
            ctx.step(optimizer)
            yield


class SpentTime:
    """The time that is spent in some methods of an object, by default the CPU time of this process.

    Args:
        target: the object; its methods are replaced.
        names: the methods, of which one may call another.
        clock: the time in seconds.
    """

    def __init__(self, target: object, *names: str, clock: Callable[[], float] = time.process_time) -> None:
        self.seconds = 0.0
        self._inside = False
        self._clock = clock
        for name in names:
            setattr(target, name, self._timed(getattr(target, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self._inside:
                return method(*args, **options)
            self._inside = True
            started = self._clock()
            try:
                return method(*args, **options)
            finally:
                self.seconds += self._clock() - started
                self._inside = False

        return call


def time_noise(result: Path, seconds: float, blocks: int, name: str, parameters: int) -> None:
    """Time blocks of steps, and the measurement of the gradient noise in them; each block has one measurement.

    The times are those of the CPU, which other processes on the host disturb less.
    """
    ctx = trainer_shim.init("checkpoints", checkpoint_every=1e9)
    torch.manual_seed(0)
    width = max(parameters // (3 * FEATURES), 1)
    layers = [nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, 2 * FEATURES), nn.Linear(2 * FEATURES, 1)]
    model = ctx.wrap(nn.Sequential(*layers))
    kinds: dict[str, type[torch.optim.Optimizer]] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    optimizer = kinds[name](model.parameters(), lr=1e-4)  # type: ignore[call-arg]
    work = adaptive_steps(ctx, products_of(seconds), optimizer, model)
    measured(work, MEASURE_EVERY)
    adaptation = ctx._position.adaptation  # noqa: SLF001
    noise = adaptation and adaptation._noise  # noqa: SLF001  the shim has no option that turns it off
    if noise is None:
        raise SystemExit("the gradient noise is not measured")
    spent = SpentTime(noise, *NOISE_METHODS)
    found: dict[str, list[float]] = {"steps": [], "noise": []}
    for _ in range(blocks):
        before = spent.seconds
        found["steps"].append(measured(work, MEASURE_EVERY, time.process_time))
        found["noise"].append(spent.seconds - before)
    if ctx.rank == 0:
        result.write_text(json.dumps(found))
    dist.barrier()


class Ballasted(nn.Module):
    """A small network that is trained, and a large parameter that is only saved."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self.net = make_net()
        self.ballast = nn.Module()
        self.ballast.weight = nn.Parameter(torch.randn(megabytes, 2**18), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the small network's output."""
        found: torch.Tensor = self.net(x)
        return found


def train_states(ctx: Context, megabytes: int, kind: str) -> Iterator[None]:
    """Train steps with a large state without end, one for each item."""
    model: nn.Module = Ballasted(megabytes)
    wrap: Callable[[nn.Module], nn.Module] = ctx.wrap
    if kind == "fsdp2":
        ctx.shard(model.ballast)  # type: ignore[arg-type]
        wrap = ctx.shard
    model = wrap(model)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.01)
    loader = ctx.loader(make_data(), global_batch=GLOBAL_BATCH, seed=1)
    ctx.track(model=model, optimizer=optimizer)
    for _ in ctx.epochs(10**6):
        for x, y in loader:
            ctx.backward(forward(model, x, y, 0.0))
            ctx.step(optimizer)
            yield


def newest_checkpoint() -> list[Path]:
    """Return the files of the newest checkpoint."""
    manifests = Path("checkpoints").glob("incarnation-*.json")
    stem = max(manifests, key=lambda path: path.stat().st_mtime_ns).stem
    return [path for path in Path("checkpoints").rglob("*") if path.is_file() and stem in str(path)]


def seconds_of_dd() -> float:
    """Return the seconds that dd takes to write the bytes of the newest checkpoint to the disk."""
    taken = 0.0
    for file in newest_checkpoint():
        file.read_bytes()  # so that dd reads from the page cache: a trainer has its state in memory
        command = ["dd", f"if={file}", "of=copy", "bs=4M", "conv=fsync"]
        started = time.perf_counter()
        subprocess.run(command, stderr=subprocess.DEVNULL, timeout=900, check=True)
        taken += time.perf_counter() - started
        Path("copy").unlink()
    return taken


def time_saves(result: Path, megabytes: int, kind: str, pairs: int) -> None:
    """Time stop checkpoints and dd, in pairs whose order alternates."""
    ctx = trainer_shim.init("checkpoints", checkpoint_every=1e9)
    found: dict[str, list[float]] = {"dd": [], "shim": []}
    steps = train_states(ctx, megabytes, kind)

    def save() -> float:
        next(steps)
        dist.barrier()
        started = time.perf_counter()
        ctx._checkpointing.save_for_stop(ctx._position.progress)  # noqa: SLF001  a stop would end the process
        dist.barrier()
        return time.perf_counter() - started

    save()  # the first one warms up
    for pair in range(pairs):
        for name in ("dd", "shim") if pair % 2 else ("shim", "dd"):
            if name == "shim":
                found[name].append(save())
            elif ctx.rank == 0:
                found[name].append(seconds_of_dd())
            dist.barrier()
    if ctx.rank == 0:
        size = sum(path.stat().st_size for path in newest_checkpoint())
        result.write_text(json.dumps({**found, "bytes": size}))
    dist.barrier()


def time_order(result: Path, samples: int, kind: str) -> None:
    """Measure the start of an epoch of many samples, up to its first micro-batch, and the micro-batches after it."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    order = SampleOrder(1, samples, kind == "shuffled").epoch_order(0)
    found = micro_batches(order, 0, PlanSwitch(plan_batch(GLOBAL_BATCH, 1)), 0)
    next(found)
    seconds, peak = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = min(samples // GLOBAL_BATCH - 1, 10**4)
    each = measured((None for _ in found), count) / count / GLOBAL_BATCH
    more = (max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, peak) - before) / 2**10
    result.write_text(json.dumps({"start_seconds": seconds, "megabytes": more, "sample_us": 1e6 * each}))


def save_all_the_time(megabytes: int, kind: str) -> None:
    """Train until stopped, with a new background checkpoint as soon as the last one is written."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    ctx = trainer_shim.init("checkpoints", checkpoint_every=0.0)
    for _ in train_states(ctx, megabytes, kind):
        time.sleep(0.05)


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, *arguments = sys.argv[1:]
    if what == "steps":
        time_steps(Path(arguments[0]), float(arguments[1]), int(arguments[2]), int(arguments[3]))
    elif what == "noise":
        time_noise(Path(arguments[0]), float(arguments[1]), int(arguments[2]), arguments[3], int(arguments[4]))
    elif what == "saves":
        time_saves(Path(arguments[0]), int(arguments[1]), arguments[2], int(arguments[3]))
    elif what == "order":
        time_order(Path(arguments[0]), int(arguments[1]), arguments[2])
    else:
        save_all_the_time(int(arguments[0]), arguments[1])
