"""Waits for training data: a stuck worker, a dead one, a slow one, and one that does not come up."""

import pytest

pytestmark = pytest.mark.shim

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import torch
import trainer_shim

how, limit = sys.argv[1], float(sys.argv[2])
ctx = trainer_shim.init("checkpoints", collective_timeout=60, data_timeout=limit)

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        if ctx.rank == ctx.size - 1:
            self.misbehave(index)
        return torch.tensor([float(index)])

    def misbehave(self, index):
        while how == "stuck" and index == 40:
            time.sleep(0.1)
        if how == "dead" and index == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "slow":
            time.sleep(0.25)

def hang():
    if not Path("hung").exists():
        Path("hung").touch()
        time.sleep(600)

if how in ("start", "fingerprints"):
    os.register_at_fork(after_in_child=hang)
torch.manual_seed(0)
model = ctx.wrap(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = ctx.loader(Numbers(), global_batch=24, shuffle=False, num_workers=1, check_samples=how != "start")
ctx.track(model=model, optimizer=optimizer)
for epoch in ctx.epochs(1):
    for x in loader:
        ctx.backward(model(x).square().mean())
        ctx.step(optimizer)
        print("trained", *x.flatten().int().tolist(), flush=True)
print("whole")
"""


def test_a_stuck_worker_ends_its_rank_within_the_bound(run_code):
    """The rank names worker, epoch and sample, writes the worker's stack, and ends; the votes do not prolong that."""
    codes, outputs = run_code(SCRIPT, "stuck", 3, size=2)
    assert codes[1] == 75
    assert codes[0] != 0
    assert "rank 1 ends with exit code 75, its training data do not come: stuck for" in outputs[1]
    assert "is at sample 40 of epoch 0" in outputs[1]
    assert "in misbehave" in outputs[1]
    assert "the first to fail was rank 1, whose training data do not come" in outputs[0].splitlines()[-1]


def test_a_dead_worker_is_named(run_code):
    """The rank whose worker was killed names worker, epoch and sample, where torch names the process alone."""
    codes, outputs = run_code(SCRIPT, "dead", 60, size=1)
    assert codes == [1]
    assert "rank 0: loader worker 0 (process " in outputs[0]
    assert "has died at sample 40 of epoch 0" in outputs[0]


def test_slow_data_are_a_warning(run_code):
    """A file system that is slow but moves is named, and ends nothing."""
    codes, outputs = run_code(SCRIPT, "slow", 5, size=1)
    assert codes == [0], outputs
    assert "for data, which come slowly (a slow file system?): worker 0 (process " in outputs[0]
    assert "whole" in outputs[0]


def test_a_worker_that_does_not_come_up_is_replaced(run_code):
    """A worker that hangs in its fork is replaced once, with words, and no sample is lost or repeated."""
    codes, outputs = run_code(SCRIPT, "start", 4, size=1)
    assert codes == [0], outputs
    assert "loader worker 0 has not come up in" in outputs[0]
    trained = [number for line in outputs[0].splitlines() if line.startswith("trained") for number in line.split()[1:]]
    assert trained == [str(number) for number in range(48)]


def test_a_worker_that_hangs_before_the_training_is_left_behind(run_code):
    """Where the worker that reads the samples to compare hangs in its fork, the training goes on, and ends."""
    codes, outputs = run_code(SCRIPT, "fingerprints", 60, size=1)
    assert codes == [0], outputs
    assert "training samples are not compared between ranks and restarts" in outputs[0]
    assert "whole" in outputs[0]


EVALUATION = """
import sys, time
import torch
import trainer_shim

how, limit = sys.argv[1], float(sys.argv[2])
ctx = trainer_shim.init("checkpoints", collective_timeout=60, data_timeout=limit)

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        while how == "stuck" and ctx.rank == ctx.size - 1 and index == 5:
            time.sleep(0.1)
        if how == "slow":
            time.sleep(0.2)
        return index

model = torch.nn.Linear(1, 1)
ctx.loader(torch.zeros(8, 1), global_batch=8)
ctx.track(model=model)
for epoch in ctx.epochs(1):
    for batch in ctx.evaluate(torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=1)):
        print("evaluated", *batch.tolist(), flush=True)
        if how == "left":
            break
    ctx.finish()
print("whole")
"""


def test_a_stuck_worker_of_an_evaluation_ends_its_rank_within_the_bound(run_code):
    """The votes of the other ranks do not prolong the wait; the rank names worker and sample."""
    codes, outputs = run_code(EVALUATION, "stuck", 2, size=2)
    assert codes[1] == 75
    assert codes[0] != 0
    assert "rank 1 ends with exit code 75, its evaluation data do not come: stuck for" in outputs[1]
    assert "is at sample 5\n" in outputs[1]
    assert "the first to fail was rank 1, whose evaluation data do not come" in outputs[0].splitlines()[-1]


def test_slow_data_of_an_evaluation_end_nothing(run_code):
    """Each sample that a worker begins is progress."""
    codes, outputs = run_code(EVALUATION, "slow", 1, size=1)
    assert codes == [0], outputs
    assert "evaluated 4 5 6 7" in outputs[0]
    assert "whole" in outputs[0]
