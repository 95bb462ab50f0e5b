"""A training whose batch adapts, which writes down each step: its samples, its learning rate, and its progress."""

import argparse
import json
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

import trainer_shim
from trainer_shim.adaptive_batch import batch_tuner
from trainer_shim.batch import BatchPlan
from trainer_shim.data import train_loader
from trainer_shim.data.plan_switch import PlanSwitch
from trainer_shim.session import trainer_session, vote_interval

RULES = {
    "accordion": trainer_shim.Accordion(threshold=0.5, every=0.5),
    "gns": trainer_shim.NoiseScale(factor=0.2, every=0.5),
    "schedule": trainer_shim.BatchSchedule({1: 20, 3: 60}),
}


class Numbers(torch.utils.data.Dataset):
    """Sample i is (i, features, target), of a linear function with noise."""

    def __init__(self, size):
        generator = torch.Generator().manual_seed(5)
        self.features = torch.randn(size, 6, dtype=torch.float64, generator=generator)
        noise = torch.randn(size, 1, dtype=torch.float64, generator=generator)
        self.targets = self.features.sum(dim=1, keepdim=True) + 2 * noise

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        return index, self.features[index], self.targets[index]


def follow_schedule(file):
    """Let each global batch have the plan that the file names, by its pass over the data and its first position."""
    schedule = {(data_pass, position): BatchPlan(*plan) for data_pass, position, plan in json.loads(file.read_text())}
    read_from = train_loader.MapSource.read_from

    def scheduled(source, data_pass, cursor):
        class Schedule(PlanSwitch):
            def plan_at(self, start, end):
                self._plan = schedule.get((data_pass, start), self._plan)
                return super().plan_at(start, end)

        train_loader.PlanSwitch = Schedule
        return read_from(source, data_pass, cursor)

    train_loader.MapSource.read_from = scheduled


def make_training():
    """A model, an optimizer, and a schedule by step."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return net, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)


def parse():
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=203)
    parser.add_argument("--global-batch", type=int, default=10)
    parser.add_argument("--max-batch", type=int)
    parser.add_argument("--max-per-gpu", type=int)
    parser.add_argument("--lr-scale")
    parser.add_argument("--adapts", choices=RULES, help="the script's own rule")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--halt", type=int, action="append", default=[], help="after this step, wait for `go-STEP`")
    parser.add_argument("--checkpoint-every", type=float, default=600.0)
    parser.add_argument("--schedule", type=Path, help="the batch plans of all steps")
    parser.add_argument("--retune", type=float, default=batch_tuner.RETUNE_SECONDS, help="seconds")
    return parser.parse_args()


def halt(args, done):
    """Wait until the test lets the trainer go on after each step that `--halt` names."""
    for step in args.halt:
        while done >= step and not (args.directory / f"go-{step}").exists():
            time.sleep(0.01)


def main():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    args = parse()
    torch.set_num_threads(1)
    batch_tuner.RETUNE_SECONDS = args.retune
    if args.schedule:
        follow_schedule(args.schedule)
    # a vote at each boundary, which reads the lease
    vote_interval.TARGET_SECONDS = trainer_session.POLL_INTERVAL = 0.0

    ctx = trainer_shim.init(args.directory / "checkpoints", checkpoint_every=args.checkpoint_every)
    net, optimizer, schedule = make_training()
    model = ctx.wrap(net)
    if args.adapts:
        ctx.adapts(RULES[args.adapts])
    loader = ctx.loader(
        Numbers(args.samples),
        global_batch=args.global_batch,
        seed=1,
        max_per_gpu=args.max_per_gpu,
        max_batch=args.max_batch,
        lr_scale=args.lr_scale,
        num_workers=args.workers,
    )
    ctx.track(model=model, optimizer=optimizer, schedule=schedule)
    rates = []
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    trained = []
    with (args.directory / f"trained-{ctx.generation}-{ctx.rank}.jsonl").open("w", buffering=1) as log:
        for epoch in ctx.epochs(args.epochs):
            for index, x, y in loader:
                if ctx._accumulation.micro.samples:  # not a filler
                    trained += index.tolist()
                ctx.backward(nn.functional.mse_loss(model(x), y))
                if ctx.boundary:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                before, base, position = ctx.progress, optimizer.param_groups[0]["lr"], ctx._position.progress.cursor
                if ctx.step(optimizer):
                    assert optimizer.param_groups[0]["lr"] == base
                    schedule.step()
                    adaptive = ctx._position.progress.adaptive
                    line = {
                        "epoch": epoch,
                        "data_pass": epoch if adaptive is None else adaptive.data_pass,
                        "step": ctx.step_count,
                        "rank": ctx.rank,
                        "indices": trained,
                        "batch": ctx._accumulation.micro.global_samples,
                        "full_batch": loader.plan.global_batch,
                        "plan": loader.plan,
                        "position": position,
                        "before": before,
                        "progress": ctx.progress,
                        "rate": rates[-1],
                        "base": base,
                    }
                    log.write(json.dumps(line) + "\n")
                    trained = []
                    write = ctx._checkpointing.saver._pending
                    if not args.checkpoint_every and write is not None:
                        write._thread.join()  # else few steps may be made before a slow disk has the checkpoint
                    halt(args, ctx.step_count)
    if ctx.rank == 0:
        torch.save(model.module.state_dict(), args.directory / "final.pt")


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a test's signal may come before the shim listens
    main()
