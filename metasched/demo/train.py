"""The training of the demo's jobs: a small classifier of three spirals, by DDP, with one rank for each GPU of the job.

Run by ``metasched-run python -m metasched.demo.train``; it may be stopped at any step, and resumes at any world size.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import trainer_shim

SAMPLES = 2560
GLOBAL_BATCH = 64


def spirals(samples: int) -> TensorDataset:
    """Return points on three noisy spirals, of shape (samples, 2), and their spirals' numbers, of shape (samples,)."""
    torch.manual_seed(0)
    labels = torch.randint(3, (samples,))
    radius = torch.rand(samples)
    angle = 2.1 * labels + 4 * radius + 0.1 * torch.randn(samples)
    return TensorDataset(torch.stack((radius * angle.cos(), radius * angle.sin()), dim=1), labels)


def main() -> None:
    """Train, and print the loss of every epoch."""
    # The demo's GPUs are fake; Slurm's indices of them would select real GPUs of this host.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--seconds-per-step", type=float, default=0.0, help="a pause that stands for a larger model")
    args = parser.parse_args()
    torch.set_num_threads(1)

    ctx = trainer_shim.init("checkpoints")
    loader = ctx.loader(spirals(SAMPLES), global_batch=GLOBAL_BATCH, seed=1)
    net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    model = ctx.wrap(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ctx.track(model=model, optimizer=optimizer)

    loss = torch.zeros(())
    for epoch in ctx.epochs(args.epochs):
        for points, labels in loader:
            loss = nn.functional.cross_entropy(model(points.to(ctx.device)), labels.to(ctx.device))
            ctx.backward(loss)
            ctx.step(optimizer)
            time.sleep(args.seconds_per_step)
        if ctx.rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f} on {ctx.size} ranks", flush=True)  # noqa: T201  a training log
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
