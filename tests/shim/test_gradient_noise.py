"""The gradient noise of ranks that average their gradients by DDP, compared with that of single micro-batches."""

import json

import pytest
import torch

from trainer_shim.adaptive_batch.gradient_noise import LocalSums
from trainer_shim.batch import plan_batch
from trainer_shim.data.plan_switch import PlanSwitch
from trainer_shim.data.sample_order import micro_batches

pytestmark = pytest.mark.shim

BATCH, MAX_PER_GPU = 13, 4

SCRIPT = """
import contextlib, json, os, sys
import torch
from torch.nn.parallel import DistributedDataParallel
from trainer_shim.adaptive_batch.gradient_noise import GradientNoise
from trainer_shim.batch import plan_batch
from trainer_shim.data.plan_switch import PlanSwitch
from trainer_shim.data.sample_order import micro_batches

torch.distributed.init_process_group("gloo")
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.set_num_threads(1)
for view in (False, True):
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    data = torch.randn(13, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    model = DistributedDataParallel(net, gradient_as_bucket_view=view)
    noise = GradientNoise([optimizer], rank=rank, ranks=size, every=1)
    for step in range(2):  # DDP builds its buckets anew after the first
        for micro in micro_batches(torch.arange(13), 0, PlanSwitch(plan_batch(13, size, 4)), rank):
            noise.begin_pass(step, micro)
            x = data[micro.indices]
            with contextlib.nullcontext() if micro.last else model.no_sync():
                ((model(x[:, :4]) - x[:, 4:]).square().mean() * micro.weight).backward()
            noise.end_pass(None)
        print(json.dumps(noise.finish_step(step)), flush=True)
        optimizer.zero_grad()
os._exit(0)  # the teardown of an interpreter may wait for gloo's threads
"""


@pytest.mark.parametrize("size", [2, 3])
def test_ddp_sees_every_micro_batch(run_code, size):
    """The hooks see the gradients of each rank and pass, before DDP averages them; the mean is that of the step."""
    codes, outputs = run_code(SCRIPT, size=size)
    assert codes == [0] * size, outputs
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    data = torch.randn(BATCH, 5, dtype=torch.float64)

    def square(indices):
        loss = (net(data[indices, :4]) - data[indices, 4:]).square().mean()
        return sum(part.square().sum().item() for part in torch.autograd.grad(loss, list(net.parameters())))

    plan = plan_batch(BATCH, size, MAX_PER_GPU)
    ranks = [list(micro_batches(torch.arange(BATCH), 0, PlanSwitch(plan), rank)) for rank in range(size)]
    squares = sum(
        micro.samples / BATCH * square(micro.indices) for micros in ranks for micro in micros if micro.samples
    )
    lines = [[LocalSums(*json.loads(line)) for line in output.splitlines()] for output in outputs]
    assert [len(each) for each in lines] == [4] * size
    for own in zip(*lines, strict=True):
        found = LocalSums(*map(sum, zip(*own, strict=True)))
        assert not found.invalid
        assert found.micro_batches == sum(micro.samples > 0 for micros in ranks for micro in micros) > size
        assert found.weighted_squares == pytest.approx(squares)
        assert found.mean_square == pytest.approx(square(torch.arange(BATCH)))
