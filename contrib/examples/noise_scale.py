"""A small classifier whose batch doubles as its gradients get noisier, by a rule of the script.

python noise_scale.py
torchrun --nproc-per-node 2 noise_scale.py
metasched-run python noise_scale.py       (in the script that sbatch gets)
python -m trainer_shim.rehearse noise_scale.py --small
"""

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import trainer_shim

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints", default="checkpoints")
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--samples", type=int, default=4096)
parser.add_argument("--accordion", action="store_true", help="small batches in critical regimes, large ones elsewhere")
parser.add_argument("--small", action="store_true", help="a run of seconds")
args = parser.parse_args()
if args.small:
    args.epochs, args.samples = 8, 512

ctx = trainer_shim.init(args.checkpoints)

# Spirals, one for each class, some points with a wrong label.
torch.manual_seed(0)
labels = torch.randint(3, (args.samples,))
radius = torch.rand(args.samples)
angle = 2.1 * labels + 4 * radius + 0.1 * torch.randn(args.samples)
points = torch.stack((radius * angle.cos(), radius * angle.sin()), dim=1)
wrong = torch.bernoulli(torch.full((args.samples,), 0.1)).bool()
labels = torch.where(wrong, torch.randint(3, (args.samples,)), labels)

# The rule, the limits of the batch, and the rule for the learning rate of a larger batch.
ctx.adapts(trainer_shim.Accordion() if args.accordion else trainer_shim.NoiseScale())
loader = ctx.loader(TensorDataset(points, labels), global_batch=16, max_batch=256, max_per_gpu=64, lr_scale="sqrt")
model = ctx.wrap(nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * loader.steps_per_epoch)
ctx.track(model=model, optimizer=optimizer, schedule=schedule)

for epoch in ctx.epochs(args.epochs):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(ctx.device)), y.to(ctx.device))
        ctx.backward(loss)
        if ctx.step(optimizer):
            schedule.step()
    if ctx.rank == 0:
        print(
            f"epoch {epoch}: batches of {loader.plan.global_batch}, {ctx.progress:.0f} steps at the first", flush=True
        )

with torch.no_grad():
    accuracy = (model.module(points.to(ctx.device)).argmax(dim=1) == labels.to(ctx.device)).double().mean()
if ctx.rank == 0:
    print(f"accuracy {accuracy:.3f}", flush=True)
