"""What the training scripts of all frameworks share: the data, the net, a log of what was trained, a deadly save."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from tests import lines_tracker

SAMPLES, GLOBAL_BATCH, EPOCHS = 48, 12, 3


class Numbers(torch.utils.data.Dataset):
    """Sample i is {"index": i, "x": features, "y": target}."""

    def __init__(self, size=SAMPLES):
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(size, 6, dtype=torch.float64, generator=generator)
        self.y = self.x.sum(dim=1, keepdim=True).sin()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"index": index, "x": self.x[index], "y": self.y[index]}


def make_net(dropout=0.0):
    """The same weights in every process that calls it."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 1)).double()


def parse():
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--global-batch", type=int, default=GLOBAL_BATCH)
    parser.add_argument("--max-per-gpu", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--halt", type=int, help="in this step, or a later one, wait for the file `go-STEP`")
    parser.add_argument("--checkpoint-every", type=float, default=600.0)
    parser.add_argument("--die-in-save", type=int, help="SIGKILL in the checkpoint of this step")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    return parser.parse_args()


class Log:
    """Writes down the indices of every micro-batch, with the step that it belongs to."""

    def __init__(self, args, companion):
        torch.set_num_threads(1)
        self._companion = companion
        self._seconds = args.step_seconds
        self._halt = args.halt
        self._go = args.directory / f"go-{args.halt}"
        name = f"trained-{companion.generation}-{companion.rank}.jsonl"
        self._file = (args.directory / name).open("w", buffering=1)
        if args.die_in_save:
            die_in_save(companion, args.die_in_save)

    def trained(self, index):
        step = self._companion.step + 1
        self._file.write(json.dumps({"step": step, "indices": index.tolist()}) + "\n")
        time.sleep(self._seconds)
        while self._halt is not None and step >= self._halt and not self._go.exists():
            time.sleep(0.01)


def open_tracker(args, shim):
    """A tracker of the framework's kind, with a file for a library."""
    lines_tracker.install()
    return shim.tracker("lines", path=args.directory / "points.jsonl")


def die_in_save(companion, step):
    """Let the process die half-way through the checkpoint of this step."""
    save = torch.save

    def dying(value, file, *args, **kwargs):
        if companion.step < step:
            return save(value, file, *args, **kwargs)
        if isinstance(file, (str, os.PathLike)):
            Path(file).write_bytes(b"half of it")
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    torch.save = dying


def finish(args, net):
    """Write the final parameters down, on one rank."""
    if int(os.environ.get("RANK", "0")) == 0:
        torch.save(net.state_dict(), args.directory / "final.pt")
        sys.stdout.write("trained to the end\n")
