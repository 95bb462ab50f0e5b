"""A training that logs each step to a tracker: `train_tracked.py DIRECTORY KIND HALT`.

After the step HALT, or a later one, it waits for the file `go-HALT`. The kind `lines` is a file, for tests alone.
"""

import json
import signal
import sys
import time
from pathlib import Path

import torch

import trainer_shim
from tests import lines_tracker

directory, kind, halt = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
TOTAL = 16
OPTIONS = {
    "wandb": {"project": "metasched", "dir": str(directory), "mode": "offline"},
    "mlflow": {"tracking_uri": f"sqlite:///{directory}/mlflow.db", "experiment": "metasched", "params": {"lr": 0.1}},
    "tensorboard": {"log_dir": str(directory / "board")},
    "lines": {"path": directory / "lines.jsonl"},
}


def main():
    torch.set_num_threads(1)
    lines_tracker.install()
    ctx = trainer_shim.init(directory / "checkpoints")
    tracker = ctx.tracker(kind, **OPTIONS[kind])
    model = ctx.wrap(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = ctx.loader(torch.utils.data.TensorDataset(torch.ones(8, 1)), global_batch=4)
    ctx.track(model=model, optimizer=optimizer)
    log = (directory / f"trained-{ctx.generation}-{ctx.rank}.jsonl").open("a", buffering=1)
    for step in ctx.steps(TOTAL):
        for (x,) in loader:
            loss = model(x).square().mean()
            ctx.backward(loss)
        ctx.step(optimizer)
        tracker.log({"loss": loss, "lr": 0.1})
        if ctx.step_count % 4 == 0:
            tracker.log({"evaluation": 1.0})
        log.write(json.dumps({"step": step + 1}) + "\n")
        while 0 < halt <= ctx.step_count and not (directory / f"go-{halt}").exists():
            time.sleep(0.01)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a test's signal may come before the shim listens
    main()
