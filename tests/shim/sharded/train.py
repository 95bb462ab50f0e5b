"""A sharded model in float64, trained by the shim; a log of what was trained in each step."""

import argparse
import json
import signal
import time
from pathlib import Path

import torch
from torch import nn

import trainer_shim
from tests.shim.train import Numbers, await_save, hold


def make_net(width=16):
    """The same weights in every process that calls it; one of its layers is frozen, and one never used."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    net[2].weight.requires_grad_(False)  # noqa: FBT003  torch's own
    return net


def make_optimizer(net):
    """AdamW with two groups, and its schedule."""
    weights = [parameter for parameter in net.parameters() if parameter.ndim > 1 and parameter.requires_grad]
    biases = [parameter for parameter in net.parameters() if parameter.ndim == 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.02}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)


def make_average(net):
    """Averaged weights of a net that is not sharded yet."""
    return torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))


def shard(ctx, net):
    """Each layer with parameters, and the whole."""
    for part in net:
        if isinstance(part, nn.Linear):
            ctx.shard(part)
    return ctx.shard(net)


def parse():
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=103)
    parser.add_argument("--global-batch", type=int, default=12)
    parser.add_argument("--max-per-gpu", type=int)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--halt", type=int, help="after this step, or a later one, wait for the file `go-STEP`")
    parser.add_argument("--checkpoint-every", type=float, default=600.0)
    parser.add_argument("--await-saves", action="store_true", help="however slow the disk is, while few steps are made")
    parser.add_argument("--plain", action="store_true", help="do not shard")
    parser.add_argument("--full-disk", type=int, help="on the rank of this number, from its second checkpoint on")
    return parser.parse_args()


def fill_disk(ctx, rank):
    """Let writing shards fail on one rank from the second time on."""
    import trainer_shim.checkpointing.formats.sharded_states as sharded  # noqa: PLC0415

    synced_file, count = sharded.synced_file, 0

    def full(path):
        nonlocal count
        count += path.name.startswith("__")
        if count > 1 and ctx.rank == rank:
            raise OSError(28, "No space left on device")
        return synced_file(path)

    sharded.synced_file = full


def main():
    args = parse()
    torch.set_num_threads(1)
    ctx = trainer_shim.init(args.directory / "checkpoints", checkpoint_every=args.checkpoint_every)
    fill_disk(ctx, args.full_disk)
    net = make_net(args.width)
    average = make_average(net)
    if not args.plain:
        shard(ctx, net)
        shard(ctx, average.module)
    optimizer, schedule = make_optimizer(net)
    idle = torch.optim.Adam(net.parameters())  # has no state, and must get none
    loader = ctx.loader(Numbers(args.samples), global_batch=args.global_batch, seed=1, max_per_gpu=args.max_per_gpu)
    ctx.track(model=net, optimizer=optimizer, schedule=schedule, average=average, idle=idle)
    assert not idle.state
    log = (args.directory / f"trained-{ctx.generation}-{ctx.rank}.jsonl").open("w", buffering=1)
    trained = []
    for epoch in ctx.epochs(args.epochs):
        for index, x, y in loader:
            if ctx._accumulation.micro.samples:  # not a filler
                trained += index.tolist()
            ctx.backward(nn.functional.mse_loss(net(x), y))
            if ctx.boundary:
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            if ctx.step(optimizer):
                schedule.step()
                average.update_parameters(net)
                log.write(json.dumps({"epoch": epoch, "step": ctx.step_count, "indices": trained}) + "\n")
                trained = []
                time.sleep(args.step_seconds)
                await_save(args, ctx)
                hold(args, ctx.step_count)
    assert not idle.state


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a test's signal may come before the shim listens
    main()
