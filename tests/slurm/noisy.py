"""A training of known gradient noise, whose passes take a set time: the batch adapts where the job's tag says so.

`noisy.py DIRECTORY` trains a linear model. Each rank writes its process id into `pids`, and each step's global batch,
progress and excess loss into `steps-GENERATION-RANK`. The training ends where the file `enough` appears. It waits after
step 50 while the file `halt` is there.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import trainer_shim
from trainer_shim.session import trainer_session, vote_interval

FIRST_BATCH, MAX_BATCH, MAX_PER_GPU = 8, 48, 24
FEATURES, SAMPLES, RATE = 256, 4096, 0.32
PASS_SECONDS, SAMPLE_SECONDS = 0.06, 0.003  # of a pass, and more for each of its samples
HALT_AT = 52  # the noise is known, and reported, two steps earlier
WEIGHTS = torch.randn(FEATURES, generator=torch.Generator().manual_seed(1))


def make_data():
    """Features of length 1, about, and targets with as much noise as signal."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(SAMPLES, FEATURES, generator=generator) / FEATURES**0.5
    return torch.utils.data.TensorDataset(x, x @ WEIGHTS + torch.randn(SAMPLES, generator=generator))


def make_model():
    """A linear model of zeros."""
    model = torch.nn.Linear(FEATURES, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model


def excess_loss(model):
    """The expected loss beyond that of the noise: 1 at the beginning."""
    return float((model.weight.detach()[0] - WEIGHTS).square().mean())


def by_hand(steps, seed):
    """The excess loss after so many steps of plain torch at the first batch."""
    (x, y), model = make_data().tensors, make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(seed)
    passes = -(-steps * FIRST_BATCH // SAMPLES)
    order = torch.cat([torch.randperm(SAMPLES, generator=generator) for _ in range(passes)])
    for batch in order.split(FIRST_BATCH)[:steps]:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x[batch])[:, 0], y[batch]).backward()
        optimizer.step()
    return excess_loss(model)


def main():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # else a private cluster's number for a fake GPU chooses a real one
    directory = Path(sys.argv[1])
    trainer_session.REPORT_SECONDS = trainer_session.POLL_INTERVAL = vote_interval.TARGET_SECONDS = 0.0
    torch.set_num_threads(1)
    ctx = trainer_shim.init(directory / "checkpoints")
    model = ctx.wrap(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loader = ctx.loader(
        make_data(),
        global_batch=FIRST_BATCH,
        seed=1,
        max_per_gpu=MAX_PER_GPU,
        max_batch=MAX_BATCH,
        lr_scale="adascale",
    )
    ctx.track(model=model, optimizer=optimizer)
    with (directory / "pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    with (directory / f"steps-{ctx.generation}-{ctx.rank}").open("a", buffering=1) as log:
        for _ in ctx.epochs(10**6):
            for x, y in loader:
                time.sleep(PASS_SECONDS + SAMPLE_SECONDS * len(x))
                ctx.backward(torch.nn.functional.mse_loss(model(x)[:, 0], y))
                if not ctx.step(optimizer):
                    continue
                line = {"batch": loader.plan.global_batch, "progress": ctx.progress, "loss": excess_loss(model.module)}
                log.write(json.dumps(line | {"step": ctx.step_count}) + "\n")
                while ctx.step_count >= HALT_AT and (directory / "halt").exists():
                    time.sleep(0.02)
                enough = torch.tensor(float((directory / "enough").exists()))
                torch.distributed.all_reduce(enough)
                if enough:
                    ctx.finish()
                    return


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a test's signal may come before the shim listens
    main()
