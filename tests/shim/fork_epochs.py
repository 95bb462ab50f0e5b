"""Many epochs of several ranks whose loader workers are forked in each epoch, between votes, on a busy host.

python -m tests.shim.fork_epochs --epochs 1000

Exits with 0 if all ranks have finished, and prints the epochs done, the seconds, and the workers that were replaced.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import trainer_shim
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
SAMPLES, GLOBAL_BATCH = 24, 8
STALL = 300.0  # seconds without an epoch after which the run counts as hung


def train(epochs, workers):
    """Train one rank; a line in a file after each epoch."""
    torch.set_num_threads(1)
    ctx = trainer_shim.init("checkpoints", collective_timeout=120, data_timeout=60)
    torch.manual_seed(0)
    model = ctx.wrap(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    dataset = torch.utils.data.TensorDataset(torch.ones(SAMPLES, 1))
    loader = ctx.loader(dataset, global_batch=GLOBAL_BATCH, num_workers=workers)
    ctx.track(model=model, optimizer=optimizer)
    with Path(f"epochs-{ctx.rank}.txt").open("w", buffering=1) as file:
        for epoch in ctx.epochs(epochs):
            for (x,) in loader:
                ctx.backward(model(x).square().mean())
                ctx.step(optimizer)
                ctx._session.vote_interval.force_vote()  # a vote just before the next fork
            file.write(f"{epoch}\n")


def epochs_done(path):
    """The epochs that a rank has finished."""
    return len(path.read_text().splitlines()) if path.exists() else 0


def main():
    """Start the ranks and the load, and wait for the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="processes that compute all the time")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        train(args.epochs, args.workers)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes end, too
    common = {"WORLD_SIZE": str(args.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.load)]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="forks-") as directory:
        outputs = [Path(directory, f"output-{rank}.txt") for rank in range(args.ranks)]
        trainers = []
        for rank, output in enumerate(outputs):
            environ = os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, "-m", "tests.shim.fork_epochs", "--rank"]
            command += ["--epochs", str(args.epochs), "--workers", str(args.workers)]
            with output.open("w") as file:
                trainers.append(subprocess.Popen(command, cwd=directory, env=environ, stdout=file, stderr=file))
        try:
            done, moved = 0, time.monotonic()
            while any(trainer.poll() is None for trainer in trainers) and time.monotonic() - moved < STALL:
                time.sleep(1)
                now = min(epochs_done(Path(directory, f"epochs-{rank}.txt")) for rank in range(args.ranks))
                done, moved = (now, time.monotonic()) if now > done else (done, moved)
            codes = [trainer.poll() for trainer in trainers]
        finally:
            for process in (*trainers, *load):
                process.kill()
                process.wait(60)
        texts = [output.read_text(errors="replace") for output in outputs]
    seconds, replaced = time.monotonic() - started, sum(text.count("is replaced") for text in texts)
    found = f"exit codes {codes}, {done} epochs of {args.ranks} ranks, {seconds:.0f} s, {replaced} workers replaced\n"
    sys.stdout.write(found)
    if set(codes) != {0}:
        sys.stdout.writelines(text[-4000:] for text in texts)
    return 0 if set(codes) == {0} else 1


if __name__ == "__main__":
    sys.exit(main())
