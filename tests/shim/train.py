"""The training script of the tests: float64, and a log of what was trained in each step."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import trainer_shim
from trainer_shim.session import vote_interval


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


class Slow(Numbers):
    """The same, but reading takes so long, and sample 50 is not read before the file `stuck` is gone."""

    def __init__(self, size, directory, seconds):
        super().__init__(size)
        self.stuck = directory / "stuck"
        self.seconds = seconds

    def __getitem__(self, index):
        while index == 50 and self.stuck.exists():
            time.sleep(0.05)
        time.sleep(self.seconds)
        return super().__getitem__(index)


def make_net(dropout):
    """The same weights in every process that calls it."""
    torch.manual_seed(3)
    layers = nn.Linear(6, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 1)
    return nn.Sequential(*layers).double()


def make_optimizer(parameters):
    """SGD with momentum, whose schedule steps with every optimizer step."""
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)


class Metric:
    """A running mean, as metric libraries keep one."""

    def __init__(self):
        self.total, self.count = torch.zeros((), dtype=torch.float64), 0

    def update(self, value):
        self.total += value
        self.count += 1

    def state_dict(self):
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state):
        self.total, self.count = state["total"], state["count"]


def finish_asked(args, epoch):
    """The same answer on all ranks: whether this was to be the last epoch, or any of them sees the file."""
    if epoch == args.last_epoch:
        return True
    if args.finish_file is None:
        return False
    seen = torch.tensor([float((args.directory / args.finish_file).exists())])
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(seen)
    return bool(seen.item())


def hold(args, step):
    """From the step on that `--halt` names, wait until the test lets the trainer go on."""
    while args.halt is not None and step >= args.halt and not (args.directory / f"go-{args.halt}").exists():
        time.sleep(0.01)


@torch.no_grad()
def evaluate(ctx, args, model, name):
    """As many batches as `--evaluate` says and one more on each further rank, half a second each; written down."""
    wanted = "epoch" if args.evaluate_at is None else f"step {args.evaluate_at}"
    if args.evaluate is None or not (name + " ").startswith(wanted + " "):
        return
    weight = model.module[0].weight
    weight.mul_(2)  # what a script may do to evaluate, such as averaged weights
    data = torch.utils.data.TensorDataset(torch.arange(args.evaluate + ctx.rank))
    with (args.directory / f"evaluated-{ctx.generation}-{ctx.rank}.txt").open("a", buffering=1) as file:
        for (number,) in ctx.evaluate(torch.utils.data.DataLoader(data, num_workers=args.workers)):
            file.write(f"{name} {number.item()}\n")
            model(torch.ones(1, 6, dtype=torch.float64))
            hold(args, ctx.step_count)
            time.sleep(args.evaluate_seconds)
            if number.item() == args.evaluate_break == ctx.rank:
                break
        file.write(f"{name} whole\n")
    if torch.distributed.is_initialized():  # what a script does with its metrics
        torch.distributed.all_reduce(torch.ones(()))
    weight.div_(2)


def parse():
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=203)
    parser.add_argument("--global-batch", type=int, default=10)
    parser.add_argument("--max-per-gpu", type=int)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--halt", type=int, help="after this step, or a later one, wait for the file `go-STEP`")
    parser.add_argument("--checkpoint-every", type=float, default=600.0)
    parser.add_argument("--await-saves", action="store_true", help="however slow the disk is, while few steps are made")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--wrap-by-hand", action="store_true")
    parser.add_argument("--last-epoch", type=int)
    parser.add_argument("--finish-file", help="end with the epoch in which this file appears in the directory")
    parser.add_argument("--evaluate", type=int, help="batches of an evaluation behind each epoch, by rank 0")
    parser.add_argument("--evaluate-seconds", type=float, default=0.5, help="per batch")
    parser.add_argument("--evaluate-break", type=int, help="the rank of this number leaves at the batch of this number")
    parser.add_argument("--evaluate-at", type=int, help="evaluate after this step, and not behind the epochs")
    parser.add_argument("--scaler", action="store_true", help="scale gradients")
    parser.add_argument("--fail-at", type=int, help="an exception in the step after this one")
    parser.add_argument("--overflow-at", type=int, help="the loss is infinite in the step after this one")
    parser.add_argument("--read-seconds", type=float, default=0.0, help="per sample")
    parser.add_argument("--latency", type=float, default=vote_interval.TARGET_SECONDS, help="seconds from vote to vote")
    parser.add_argument("--slow-disk", type=float, default=0.0, help="seconds that a checkpoint takes")
    return parser.parse_args()


def disturbed(args, step, loss):
    """The loss, or what is to go wrong in this step."""
    if step == args.fail_at:
        raise ArithmeticError("this step fails")
    return loss * torch.inf if step == args.overflow_at else loss


def slow_down(ctx, seconds):
    """Let each checkpoint take so long."""
    save = ctx._checkpointing.checkpoints.save

    def slow(*arguments):
        time.sleep(seconds)
        return save(*arguments)

    ctx._checkpointing.checkpoints.save = slow


def await_save(args, ctx):
    """With `--await-saves`, wait until the checkpoint that was begun last is written."""
    if args.await_saves and ctx._checkpointing.saver._pending is not None:
        ctx._checkpointing.saver._pending._thread.join()


def count_votes(ctx):
    """The list of step counts at which this rank has voted, which grows."""
    start_vote, steps = ctx._session.start_vote, []

    def counted(vote):
        steps.append(ctx.step_count)
        return start_vote(vote)

    ctx._session.start_vote = counted
    return steps


def main():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # else a private cluster's number for a fake GPU chooses a real one
    args = parse()
    torch.set_num_threads(1)
    vote_interval.TARGET_SECONDS = args.latency

    ctx = trainer_shim.init(args.directory / "checkpoints", checkpoint_every=args.checkpoint_every)
    slow_down(ctx, args.slow_disk)
    votes = count_votes(ctx)
    net = make_net(args.dropout)
    if args.evaluate is not None:
        net.register_buffer("seen", torch.zeros(()), persistent=False)  # for which DDP's forward needs all ranks
    model = nn.parallel.DistributedDataParallel(net) if args.wrap_by_hand else ctx.wrap(net)
    optimizer, schedule = make_optimizer(model.parameters())
    loader = ctx.loader(
        Slow(args.samples, args.directory, args.read_seconds),
        global_batch=args.global_batch,
        seed=1,
        max_per_gpu=args.max_per_gpu,
        num_workers=args.workers,
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4, enabled=args.scaler)
    average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    metric = Metric()
    ctx.track(model=model, optimizer=optimizer, schedule=schedule, scaler=scaler, average=average, metric=metric)
    number = 0 if ctx.is_profiling_run else ctx.generation  # a profiling run must not write over what a run has written
    log = (args.directory / f"trained-{number}-{ctx.rank}.jsonl").open("w", buffering=1)
    ctx.on_stop(
        lambda cause: sys.stdout.write(f"before {cause} on {ctx.rank}\n"),
        lambda cause: sys.stdout.write(f"after {cause} on {ctx.rank}\n"),
    )
    ctx.on_stop(lambda _: 1 / 0)
    trained, loss_sum = [], 0.0
    for epoch in ctx.epochs(args.epochs):
        for index, x, y in loader:
            if ctx._accumulation.micro.samples:  # not a filler
                trained += index.tolist()
            loss = nn.functional.mse_loss(model(x), y)
            loss = disturbed(args, ctx.step_count, loss)
            loss_sum += loss.item() * ctx._accumulation.micro.samples
            ctx.backward(loss, scaler)
            if ctx.boundary:
                scaler.unscale_(optimizer)
            if ctx.step(optimizer, scaler=scaler):
                schedule.step()
                average.update_parameters(net)
                metric.update(ctx.step_count)
                line = {"epoch": epoch, "step": ctx.step_count, "indices": trained, "loss_sum": loss_sum}
                log.write(json.dumps(line) + "\n")
                trained, loss_sum = [], 0.0
                time.sleep(args.step_seconds)
                await_save(args, ctx)
                evaluate(ctx, args, model, f"step {ctx.step_count}")
                hold(args, ctx.step_count)
        evaluate(ctx, args, model, f"epoch {epoch}")
        if finish_asked(args, epoch):
            ctx.finish()
            break
    (args.directory / f"votes-{ctx.generation}-{ctx.rank}.json").write_text(json.dumps(votes))
    if ctx.rank == 0:
        torch.save(model.module.state_dict(), args.directory / "final.pt")
        states = {"scaler": scaler.state_dict(), "metric": metric.state_dict()} | average.state_dict()
        torch.save(states, args.directory / "others.pt")


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a test's signal may come before the shim listens
    main()
