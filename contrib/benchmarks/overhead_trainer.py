"""What shim_overhead trains: steps by plain DDP and by the shim in turns, or a large state that is saved all the time.

overhead_trainer.py steps RESULT STEP_SECONDS BLOCK PAIRS
overhead_trainer.py states MEGABYTES {pt|fsdp2} SECONDS-BETWEEN-CHECKPOINTS
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import trainer_shim

GLOBAL_BATCH, FEATURES, SAMPLES = 32, 256, 4096
MATRIX = torch.randn(128, 128)


def make_net() -> nn.Module:
    """The same weights in every process that calls it."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 1))


def make_data() -> TensorDataset:
    """Samples that cost next to nothing to read."""
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(SAMPLES, FEATURES, generator=generator), torch.randn(SAMPLES, 1, generator=generator)
    )


def forward(model: nn.Module, x: torch.Tensor, y: torch.Tensor, seconds: float) -> torch.Tensor:
    """The loss, after so many seconds of computing."""
    until = time.perf_counter() + seconds
    loss = nn.functional.mse_loss(model(x), y)
    while time.perf_counter() < until:
        torch.mm(MATRIX, MATRIX)
    return loss


def plain_steps(seconds: float) -> Iterator[None]:
    """Steps as a plain DDP script does them, for ever."""
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


def shim_steps(ctx: trainer_shim.context.Context, seconds: float) -> Iterator[None]:
    """The same by the shim."""
    model = ctx.wrap(make_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = ctx.loader(make_data(), global_batch=GLOBAL_BATCH, seed=1)
    ctx.track(model=model, optimizer=optimizer)
    for _ in ctx.epochs(10**6):
        for x, y in loader:
            ctx.backward(forward(model, x, y, seconds))
            ctx.step(optimizer)
            yield


def measured(work: Iterator[None], steps: int) -> float:
    """Seconds for so many steps."""
    started = time.perf_counter()
    for _ in range(steps):
        next(work)
    return time.perf_counter() - started


def time_steps(result: Path, seconds: float, block: int, pairs: int) -> None:
    """Blocks of steps, the two kinds in turns, their order turned round from pair to pair."""
    ctx = trainer_shim.init("checkpoints", checkpoint_every=1e9)
    work = {"plain": plain_steps(seconds), "shim": shim_steps(ctx, seconds)}
    for each in work.values():
        measured(each, 5)
    found: dict[str, list[float]] = {name: [] for name in work}
    for pair in range(pairs):
        for name in ("plain", "shim") if pair % 2 else ("shim", "plain"):
            dist.barrier()
            found[name].append(measured(work[name], block))
    if ctx.rank == 0:
        result.write_text(json.dumps(found))
    dist.barrier()


class Ballasted(nn.Module):
    """A small net that is trained, and a large parameter that is only saved."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self.net = make_net()
        self.ballast = nn.Module()
        self.ballast.weight = nn.Parameter(torch.randn(megabytes, 2**18), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The small net's output."""
        found: torch.Tensor = self.net(x)
        return found


def train_states(megabytes: int, kind: str, every: float) -> None:
    """Train on, with checkpoints, until it is stopped."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    ctx = trainer_shim.init("checkpoints", checkpoint_every=every)
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
            time.sleep(0.05)


if __name__ == "__main__":
    import trainer_shim.context  # for the annotation alone

    torch.set_num_threads(1)
    if sys.argv[1] == "steps":
        time_steps(Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    else:
        train_states(int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
