"""A training that counts steps, on random batches, with BatchNorm, clipping and averaged weights, in float64.

`train_steps.py DIRECTORY TOTAL HALT`: after the step HALT, or a later one, it waits for the file `go-HALT`.
"""

import json
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import trainer_shim

directory, total, halt = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


def draw(samples):
    """Random inputs, with targets that follow from them."""
    x = torch.randn(samples, 4, dtype=torch.float64)
    return x, x.sum(dim=1, keepdim=True).sin()


def main():
    torch.set_num_threads(1)
    ctx = trainer_shim.init(directory / "checkpoints")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)).double()
    model = ctx.wrap(net)
    ctx.average_statistics(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    average = torch.optim.swa_utils.AveragedModel(net)
    batches = ctx.random_batches(draw, global_batch=12, seed=5, max_per_gpu=3)
    ctx.track(model=model, optimizer=optimizer, average=average)
    log = (directory / f"trained-{ctx.generation}-{ctx.rank}.jsonl").open("a", buffering=1)
    for step in ctx.steps(total):
        drawn = []
        for x, y in batches:
            drawn += x[:, 0].tolist()
            ctx.weighted(((model(x) - y) ** 2).mean()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        ctx.step()
        average.update_parameters(net)
        log.write(json.dumps({"step": step + 1, "epoch": 0, "indices": drawn}) + "\n")
        while 0 < halt <= ctx.step_count and not (directory / f"go-{halt}").exists():
            time.sleep(0.01)
    if ctx.rank == 0:
        torch.save({"model": net.state_dict(), "average": average.state_dict()}, directory / "final.pt")
    ctx.export(directory / "export")


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a test's signal may come before the shim listens
    main()
