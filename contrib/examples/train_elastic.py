"""A small classifier, trained with DDP by as many processes as torchrun starts."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import data

import trainer_shim

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--samples", type=int, default=4096)
parser.add_argument("--seconds-per-step", type=float, default=0.0, help="stand in for a larger model")
args = parser.parse_args()

on_gpu = torch.cuda.is_available()
ctx = trainer_shim.init("checkpoints")
device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if on_gpu else torch.device("cpu")

# Spirals, one for each class.
torch.manual_seed(0)
labels = torch.randint(3, (args.samples,))
radius = torch.rand(args.samples)
angle = 2.1 * labels + 4 * radius + 0.1 * torch.randn(args.samples)
points = torch.stack((radius * angle.cos(), radius * angle.sin()), dim=1)
dataset = data.TensorDataset(points, labels)

net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
model = nn.parallel.DistributedDataParallel(net.to(device))
loader = ctx.loader(dataset, global_batch=64, seed=1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
ctx.track(model=model, optimizer=optimizer, schedule=schedule)

for epoch in ctx.epochs(args.epochs):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        ctx.backward(loss)
        ctx.step(optimizer)
        time.sleep(args.seconds_per_step)
    schedule.step()
    if dist.get_rank() == 0:
        print(f"epoch {epoch} done", flush=True)

model.eval()
with torch.no_grad():
    accuracy = (model(points.to(device)).argmax(dim=1) == labels.to(device)).double().mean()
if dist.get_rank() == 0:
    print(f"accuracy {accuracy:.3f}", flush=True)
dist.destroy_process_group()
