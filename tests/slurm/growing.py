"""A training whose script doubles its batch twice, as it declares; each pass takes a set time at every batch.

`growing.py DIRECTORY` writes each step's global batch, progress and time into `steps-GENERATION`.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

import trainer_shim
from trainer_shim.session import trainer_session

FIRST_BATCH, SAMPLES, EPOCHS = 8, 64, 24
BATCHES = {8: 16, 16: 32}
PASS_SECONDS = 0.1


def main():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # else a private cluster's number for a fake GPU chooses a real one
    directory = Path(sys.argv[1])
    trainer_session.REPORT_SECONDS = 0.3
    torch.set_num_threads(1)
    ctx = trainer_shim.init(directory / "checkpoints")
    ctx.adapts(trainer_shim.BatchSchedule(BATCHES))
    model = ctx.wrap(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
    loader = ctx.loader(data, global_batch=FIRST_BATCH, max_batch=32, max_per_gpu=32, lr_scale="sqrt")
    ctx.track(model=model, optimizer=optimizer)
    with (directory / f"steps-{ctx.generation}").open("a", buffering=1) as log:
        for _ in ctx.epochs(EPOCHS):
            for x in loader:
                time.sleep(PASS_SECONDS)
                ctx.backward(model(x).square().mean())
                if ctx.step(optimizer):
                    line = {"batch": loader.plan.global_batch, "progress": ctx.progress, "at": time.time()}
                    log.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
