"""The training script that is killed: float64, a log of what was trained, a disk that takes its time.

Its parameter `memory` adds up every sample that was ever trained, without forgetting: a sample that is lost or repeated
shows in it for ever. At one point (`--at`, `--step`, `--rank`) it can be made to do something that no script should.
"""

import argparse
import ctypes
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import trainer_shim

SAMPLES, GLOBAL_BATCH = 101, 12
POINTS = ("body", "vote", "after", "evaluation", "save")
FSYNC_SECONDS = (0.002, 0.04)


class Net(nn.Module):
    """The same weights wherever it is made."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()
        self.memory = nn.Parameter(torch.zeros(6, dtype=torch.float64))

    def forward(self, x, y):
        """The loss, a mean over the samples."""
        return nn.functional.mse_loss(self.body(x), y) + (x @ self.memory).mean()


def make_data():
    """Features (SAMPLES, 6) and targets (SAMPLES, 1), always the same."""
    features = torch.randn(SAMPLES, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return features, features.sum(dim=1, keepdim=True).sin()


def make_optimizer(net):
    """SGD with momentum."""
    return torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.8)


def slow_fsync():
    """Each fsync takes a while, so that kills strike in the middle of checkpoints."""
    fsync, dice = os.fsync, random.Random(os.getpid())  # noqa: S311  no secret

    def slow(descriptor):
        time.sleep(dice.uniform(*FSYNC_SECONDS))
        fsync(descriptor)

    os.fsync = slow


def misbehave(how):
    """Never return to the loop."""
    if how == "raise":
        raise ValueError("the script is wrong")
    if how == "leave":
        sys.exit(0)
    while how == "loop":
        pass
    while how == "sleep":
        time.sleep(0.05)
    if how == "hold":  # Python's lock, too: no other thread of this process runs any more
        ctypes.PyDLL(None).sleep(10_000)


def parse():
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--epochs", type=int, default=10**9)
    parser.add_argument("--step-seconds", type=float, default=0.012)
    parser.add_argument("--checkpoint-every", type=float, default=0.3)
    parser.add_argument("--collective-timeout", type=float, default=30.0)
    parser.add_argument("--at", choices=POINTS)
    parser.add_argument("--step", type=int, default=12)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--how", default="sleep", choices=["raise", "leave", "loop", "sleep", "hold"])
    return parser.parse_args()


def finish_asked(ctx, args):
    """The same answer on all ranks: whether any of them sees the file that asks for the end."""
    seen = torch.tensor(float((args.directory / "finish").exists()))
    if ctx.size > 1:
        torch.distributed.all_reduce(seen)
    return bool(seen)


def note_start(ctx, directory):
    """Write the step that this generation resumed from, whole or not at all."""
    if ctx.rank == 0:
        partial = directory / f"starting-{ctx.generation}"
        partial.write_text(str(ctx.step_count))
        partial.rename(directory / f"started-{ctx.generation}")


def main():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # else a private cluster's number for a fake GPU chooses a real one
    args = parse()
    torch.set_num_threads(1)
    slow_fsync()

    ctx = trainer_shim.init(
        args.directory / "checkpoints",
        checkpoint_every=args.checkpoint_every,
        collective_timeout=args.collective_timeout,
    )

    def at(point):
        late = ctx.step_count > args.step and point == "save"  # there need not be one at that very step
        if (point, ctx.rank) == (args.at, args.rank) and (late or ctx.step_count == args.step):
            (args.directory / f"there-{ctx.generation}").touch()
            misbehave(args.how)

    save = ctx._checkpointing.checkpoints.save

    def watched_save(*arguments):
        at("save")
        return save(*arguments)

    ctx._checkpointing.checkpoints.save = watched_save
    features, targets = make_data()
    data = torch.utils.data.TensorDataset(torch.arange(SAMPLES), features, targets)
    net = Net()
    model = ctx.wrap(net)
    optimizer = make_optimizer(net)
    loader = ctx.loader(data, global_batch=GLOBAL_BATCH, seed=1)
    ctx.track(model=model, optimizer=optimizer)
    note_start(ctx, args.directory)
    log = (args.directory / f"trained-{ctx.generation}-{ctx.rank}.jsonl").open("w", buffering=1)
    for epoch in ctx.epochs(args.epochs):
        for index, x, y in loader:
            samples = index.tolist() if ctx._accumulation.micro.samples else []  # a filler is not trained
            # Written before the step: the checkpoint that has the step may be there before the next line is run.
            log.write(json.dumps({"epoch": epoch, "step": ctx.step_count + 1, "samples": samples}) + "\n")
            at("body")
            ctx.backward(model(x, y))
            at("vote")
            if ctx.step(optimizer):
                time.sleep(args.step_seconds)
                at("after")
        for _ in ctx.evaluate(range(2 * (args.at == "evaluation"))):
            at("evaluation")
        if finish_asked(ctx, args):
            ctx.finish()
            break
    if ctx.rank == 0:
        torch.save(net.state_dict(), args.directory / "final.pt")


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # may come before the shim listens
    main()
