"""Loader workers that are spawned and not forked: they import the script anew, so it is a file with a main block."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.shim

SCRIPT = """
import time
from pathlib import Path
import torch
import trainer_shim

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        while index == 12 and Path("begun").exists():
            time.sleep(0.1)
        return torch.tensor([float(index)])

def main():
    ctx = trainer_shim.init("checkpoints", checkpoint_every=0.0, data_timeout=3)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = ctx.loader(Numbers(), global_batch=4, shuffle=False, num_workers=1, multiprocessing_context="spawn")
    Path("begun").touch()  # some samples are compared by now
    ctx.track(model=model, optimizer=optimizer)
    for epoch in ctx.epochs(1):
        for x in loader:
            ctx.backward(model(x).square().mean())
            ctx.step(optimizer)

if __name__ == "__main__":
    main()
"""


def test_spawned_workers_are_watched_and_their_samples_compared(tmp_path):
    """A stuck one is named with its sample, and the checkpoint has fingerprints of some samples."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 75, done.stderr
    assert "its training data do not come: stuck for" in done.stderr
    assert "is at sample 12 of epoch 0" in done.stderr
    assert "in __getitem__" in done.stderr
    manifest = json.loads(max((tmp_path / "checkpoints").glob("incarnation-1-step-*.json")).read_text())
    assert manifest["samples"]
