"""A training submitted by submitit, which metasched schedules, preempts and resizes.

pip install submitit                                  (or metasched[examples])
python submitit_training.py DIRECTORY --gpus 2

Run it where sbatch works; DIRECTORY is a new directory that all nodes see, for submitit's files and the checkpoints.
Three parameters matter: the comment is the tag, the command that starts Python is `metasched-run python`, which starts
one process for each GPU of the run, and `use_srun=False` leaves that to it. A preempted job continues from its
checkpoint; submitit's own requeueing is not used. The result is that of rank 0.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path


def train(checkpoints: Path, epochs: int) -> tuple[int, float]:
    """Train a line on 512 points, at any number of GPUs; return the last run's number of processes, and the loss."""
    import torch  # noqa: PLC0415  the submission needs none
    import torch.distributed as dist  # noqa: PLC0415
    from torch.utils.data import TensorDataset  # noqa: PLC0415

    import trainer_shim  # noqa: PLC0415

    ctx = trainer_shim.init(checkpoints)
    torch.manual_seed(0)
    x = torch.randn(512, 1)
    net = torch.nn.Linear(1, 1)
    model = ctx.wrap(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = ctx.loader(TensorDataset(x, 2 * x + 1), global_batch=64, seed=1)
    ctx.track(model=model, optimizer=optimizer)
    loss = torch.zeros(())
    for _ in ctx.epochs(epochs):
        for points, targets in loader:
            loss = torch.nn.functional.mse_loss(model(points), targets)
            ctx.backward(loss)
            ctx.step(optimizer)
            time.sleep(0.02)  # in place of a larger model
    return (dist.get_world_size() if dist.is_initialized() else 1), float(loss)


def main() -> None:
    """Submit the training, wait for it, and print its result."""
    import submitit  # noqa: PLC0415  the training needs its process_job alone

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    folder = args.directory.resolve()
    executor = submitit.SlurmExecutor(folder / "submitit", python=f"metasched-run {shlex.quote(sys.executable)}")
    executor.update_parameters(
        comment=f"metasched min_gpus=1 max_gpus={args.gpus}",
        gres=f"gpu:{args.gpus}",
        job_name="submitit-training",
        time=60,
        use_srun=False,
    )
    job = executor.submit(train, folder / "checkpoints", args.epochs)
    print(f"job {job.job_id}", flush=True)
    world_size, loss = job.result()
    print(f"trained by {world_size} processes, loss {loss:.6f}")


if __name__ == "__main__":
    main()
