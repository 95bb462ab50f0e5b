"""A trial as in trial.py, with the shim: `shim_trial.py DIRECTORY STEPS GATE...`; its metric is its array task.

It waits at the first gate only. The shim reports once a second, and steps are slow enough for that.
"""

import os
import sys
import time
from pathlib import Path

import torch

import trainer_shim


def main():
    directory, total, gate = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    task = os.environ["SLURM_ARRAY_TASK_ID"]
    ctx = trainer_shim.init(directory / f"checkpoints-{task}", checkpoint_every=600.0)
    model = ctx.wrap(torch.nn.Linear(1, 1))
    loader = ctx.loader(range(10 * total), global_batch=1)  # it never ends by itself
    ctx.track(model=model)
    ctx.on_stop(after=(directory / f"ended-{task}").write_text)
    for _ in ctx.epochs(1):
        for _ in loader:
            time.sleep(0.3)
            if ctx.step_count + 1 == gate:
                (directory / f"waits-{task}").touch()
                while not (directory / f"gate-{gate}").exists():
                    time.sleep(0.1)
            ctx.metric(float(task))
            ctx.step()


if __name__ == "__main__":
    main()
