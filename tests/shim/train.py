"""The training script of the tests: float64, and a log of what was trained in each step."""

import argparse
import json
import signal
import time
from pathlib import Path

import torch
from torch import nn

import trainer_shim


class Numbers(torch.utils.data.Dataset):
    """Sample i is (i, features, target)."""

    def __init__(self, size):
        generator = torch.Generator().manual_seed(5)
        self.features = torch.randn(size, 6, dtype=torch.float64, generator=generator)
        self.targets = self.features.sum(dim=1, keepdim=True).sin()

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        return index, self.features[index], self.targets[index]


def make_net(dropout):
    """The same weights in every process that calls it."""
    torch.manual_seed(3)
    layers = nn.Linear(6, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 1)
    return nn.Sequential(*layers).double()


def make_optimizer(parameters):
    """SGD with momentum, whose schedule steps with every optimizer step."""
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)


def finish_asked(args):
    """The same answer on all ranks: whether any of them sees the file."""
    if args.finish_file is None:
        return False
    seen = torch.tensor([float((args.directory / args.finish_file).exists())])
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(seen)
    return bool(seen.item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=203)
    parser.add_argument("--global-batch", type=int, default=10)
    parser.add_argument("--max-per-gpu", type=int)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--checkpoint-every", type=float, default=600.0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--wrap-by-hand", action="store_true")
    parser.add_argument("--last-epoch", type=int)
    parser.add_argument("--finish-file", help="end with the epoch in which this file appears in the directory")
    args = parser.parse_args()
    torch.set_num_threads(1)

    ctx = trainer_shim.init(args.directory / "checkpoints", checkpoint_every=args.checkpoint_every)
    net = make_net(args.dropout)
    model = nn.parallel.DistributedDataParallel(net) if args.wrap_by_hand else ctx.wrap(net)
    optimizer, schedule = make_optimizer(model.parameters())
    loader = ctx.loader(
        Numbers(args.samples),
        global_batch=args.global_batch,
        seed=1,
        max_per_gpu=args.max_per_gpu,
        num_workers=args.workers,
    )
    ctx.track(model=model, optimizer=optimizer, schedule=schedule)
    log = (args.directory / f"trained-{ctx.incarnation}-{ctx.rank}.jsonl").open("w", buffering=1)
    trained = []
    for epoch in ctx.epochs(args.epochs):
        for index, x, y in loader:
            if ctx._micro.samples:  # not a filler
                trained += index.tolist()
            loss = nn.functional.mse_loss(model(x), y)
            ctx.backward(loss)
            if ctx.step(optimizer):
                schedule.step()
                log.write(json.dumps({"epoch": epoch, "step": ctx.step_count, "indices": trained}) + "\n")
                trained = []
                time.sleep(args.step_seconds)
        if epoch == args.last_epoch or finish_asked(args):
            ctx.finish()
            break
    if ctx.rank == 0:
        torch.save(model.module.state_dict(), args.directory / "final.pt")


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a test's signal may come before the shim listens
    main()
