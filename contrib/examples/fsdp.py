"""A deep residual perceptron, its weights sharded over all ranks with FSDP2, learns to invert a scrambling.

python fsdp.py
torchrun --nproc-per-node 2 fsdp.py
metasched-run python fsdp.py              (in the script that sbatch gets)
python -m trainer_shim.rehearse --tolerance 3.5e-4 fsdp.py --small
"""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import trainer_shim

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints", default="checkpoints")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--samples", type=int, default=8192)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--depth", type=int, default=4, help="blocks, each sharded by itself")
parser.add_argument("--small", action="store_true", help="a run of seconds")
args = parser.parse_args()
if args.small:
    args.epochs, args.samples, args.width, args.depth = 2, 512, 32, 2


class Block(nn.Module):
    """A residual block: a perceptron whose output is added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of shape (n, width) for an input of that shape."""
        return x + self.inner(x)


ctx = trainer_shim.init(args.checkpoints)
torch.manual_seed(0)  # each rank keeps its shard of what it has made itself: all make the same
plain = torch.randn(args.samples, 8)
scrambled = (plain @ torch.randn(8, 8)).tanh()
net = nn.Sequential(nn.Linear(8, args.width), *[Block(args.width) for _ in range(args.depth)], nn.Linear(args.width, 8))

for block in net[1:-1]:
    ctx.shard(block)
model = ctx.shard(net)  # the whole after its blocks, and the optimizer after both
loader = ctx.loader(TensorDataset(scrambled, plain), global_batch=64, seed=1, max_per_gpu=32)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * loader.steps_per_epoch)
ctx.track(model=model, optimizer=optimizer, schedule=schedule)

for epoch in ctx.epochs(args.epochs):
    for x, y in loader:
        loss = functional.mse_loss(model(x.to(ctx.device)), y.to(ctx.device))
        ctx.backward(loss)
        if ctx.boundary:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if ctx.step(optimizer):
            schedule.step()
    if ctx.rank == 0:
        print(f"epoch {epoch} done", flush=True)

with torch.no_grad():
    loss = functional.mse_loss(model(scrambled.to(ctx.device)), plain.to(ctx.device))
if ctx.rank == 0:
    print(f"loss over all samples: {loss:.4f}", flush=True)
