"""A training on a stream, with noise from three generators; it notes what each rank has trained in each step.

`train_stream.py DIRECTORY WORKERS STEP [split]`: after the step, or a later one, it waits for the file `go-STEP`.
"""

import json
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

import trainer_shim

directory, workers, halt, split = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["split"]
SAMPLES, EPOCHS, GLOBAL_BATCH = 83, 2, 10


class Stream(torch.utils.data.IterableDataset):
    """Samples in an order that is drawn anew for each epoch."""

    def __iter__(self):
        order = list(range(SAMPLES))
        random.shuffle(order)
        mine = torch.distributed.get_rank() if split else 0  # what must not be
        for index in order[mine * 40 :]:
            noise = torch.rand(()).item() + random.random() + np.random.rand()  # noqa: NPY002, S311
            yield index, torch.tensor([index / SAMPLES, noise], dtype=torch.float64)


def main():
    torch.set_num_threads(1)
    ctx = trainer_shim.init(directory / "checkpoints")
    torch.manual_seed(0)
    model = ctx.wrap(torch.nn.Linear(2, 1).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    limit = 3 if ctx.size == 3 else None
    loader = ctx.loader(Stream(), global_batch=GLOBAL_BATCH, seed=4, max_per_gpu=limit, num_workers=workers)
    ctx.track(model=model, optimizer=optimizer)
    assert loader.steps_per_epoch is None
    log = (directory / f"trained-{ctx.generation}-{ctx.rank}.jsonl").open("a", buffering=1)
    for epoch in ctx.epochs(EPOCHS):
        trained = []
        for index, x in loader:
            trained += index.tolist() if ctx._accumulation.micro.samples else []
            loss = ((model(x) - x.sum(dim=1, keepdim=True).sin()) ** 2).mean()
            ctx.backward(loss)
            if ctx.step(optimizer):
                log.write(json.dumps({"epoch": epoch, "step": ctx.step_count, "indices": trained}) + "\n")
                trained = []
                while 0 < halt <= ctx.step_count and not (directory / f"go-{halt}").exists():
                    time.sleep(0.01)
    if ctx.rank == 0:
        torch.save(model.module.state_dict(), directory / "final.pt")


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a test's signal may come before the shim listens
    main()
