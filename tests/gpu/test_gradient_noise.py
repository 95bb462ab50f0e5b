"""The cost of measuring the gradient noise on a GPU: time and memory of a ResNet-18's steps."""

import time

import pytest
import torch
from torch import nn
from torch.nn import functional

from trainer_shim.adaptive_batch.gradient_noise import MEASURE_EVERY, GradientNoise
from trainer_shim.batch import plan_batch
from trainer_shim.data.plan_switch import PlanSwitch
from trainer_shim.data.sample_order import micro_batches

pytestmark = pytest.mark.shim

DEVICE = "cuda"
BATCH, SIDE = 64, 128
BLOCKS = 12  # of MEASURE_EVERY steps


class Residual(nn.Module):
    """A basic block of ResNet-18."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.around = nn.Identity()
        if stride > 1:
            self.around = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        inner = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(inner)) + self.around(x))


def resnet18():
    """ResNet-18 with 11 million parameters."""
    layers = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for before, after, stride in [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]:
        layers += [Residual(before, after, stride), Residual(after, after, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))


def train_blocks(make, max_per_gpu, *, measures):
    """The least seconds of MEASURE_EVERY steps, and the peak of the memory in bytes."""
    torch.manual_seed(1)
    net = resnet18().to(DEVICE)
    optimizer = make(net.parameters())
    noise = GradientNoise([optimizer]) if measures else None
    data = torch.randn(BATCH, 3, SIDE, SIDE, device=DEVICE)
    targets = torch.randint(100, (BATCH,), device=DEVICE)
    plan = plan_batch(BATCH, 1, max_per_gpu)
    times = []
    torch.cuda.reset_peak_memory_stats()
    for block in range(BLOCKS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for step in range(block * MEASURE_EVERY, (block + 1) * MEASURE_EVERY):
            for micro in micro_batches(torch.arange(BATCH), 0, PlanSwitch(plan), 0):
                part = slice(micro.position, micro.position + micro.samples)
                if noise is not None:
                    noise.begin_pass(step, micro)
                (functional.cross_entropy(net(data[part]), targets[part]) * micro.weight).backward()
                if noise is not None:
                    noise.end_pass(None)
            if noise is not None:
                sums = noise.finish_step(step)
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    if noise is not None:
        assert sums.measurement(BATCH) is not None
    return min(times), torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("max_per_gpu", [BATCH, BATCH // 2], ids=["differences", "passes"])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_the_cost_of_a_measurement(name, max_per_gpu):
    """A step costs less than 1 % more, and the memory at most one copy of the gradients more."""

    def make(parameters):
        return getattr(torch.optim, name)(parameters, lr=1e-3)

    train_blocks(make, max_per_gpu, measures=False)  # chooses kernels, and fills the allocator's caches
    plain, plain_bytes = train_blocks(make, max_per_gpu, measures=False)
    measured, measured_bytes = train_blocks(make, max_per_gpu, measures=True)
    gradients = sum(each.numel() * each.element_size() for each in resnet18().parameters())
    print(f"{name}, {max_per_gpu}: {1000 * plain / MEASURE_EVERY:.2f} ms a step, {measured / plain - 1:+.2%}")  # noqa: T201
    assert measured < 1.01 * plain
    assert measured_bytes < plain_bytes + 1.1 * gradients
