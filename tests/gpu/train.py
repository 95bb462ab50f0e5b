"""The training script of the tests on a GPU: mixed precision, dropout on the device, and a log of every step.

Without a GPU it trains all the same, so that a checkpoint may come from one and go to the other.
"""

import argparse
import json
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import trainer_shim
from tests.shim.train import hold


class Numbers(torch.utils.data.Dataset):
    """Sample i is (i, features, target)."""

    def __init__(self, size):
        generator = torch.Generator().manual_seed(5)
        self.features = torch.randn(size, 64, generator=generator)
        self.targets = self.features.sum(dim=1, keepdim=True).sin()

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        return index, self.features[index], self.targets[index]


def parse():
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--kind", choices=("whole", "sharded", "compiled"), default="whole")
    parser.add_argument("--checkpoint-every", type=float, default=600.0)
    parser.add_argument("--halt", type=int, help="after this step, or a later one, wait for the file `go-STEP`")
    parser.add_argument("--ballast", type=int, default=0, help="bytes of the state that no step changes the size of")
    parser.add_argument("--lag", type=float, default=0.0, help="seconds that the device works on after each step")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that the host sleeps after each step")
    return parser.parse_args()


class Net(nn.Module):
    """An MLP with dropout, and weights that only make its state large."""

    def __init__(self, ballast):
        super().__init__()
        torch.manual_seed(3)
        hidden = nn.Linear(64, 256), nn.Tanh(), nn.Dropout(0.2), nn.Linear(256, 256), nn.Tanh(), nn.Dropout(0.2)
        self.layers = nn.Sequential(*hidden, nn.Linear(256, 1))
        self.ballast = nn.Parameter(torch.ones(max(ballast // 4, 8)))

    def forward(self, x):
        return self.layers(x) + self.ballast.mean() * 1e-3


def main():
    args = parse()
    torch.use_deterministic_algorithms(mode=True)
    ctx = trainer_shim.init(args.directory / "checkpoints", checkpoint_every=args.checkpoint_every)
    device = ctx.device
    on_gpu = device.type == "cuda"
    net = Net(args.ballast).to(device)
    if args.kind == "sharded":
        model = ctx.shard(net)
    else:
        model = ctx.wrap(torch.compile(net) if args.kind == "compiled" else net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = ctx.loader(Numbers(1600), global_batch=64, seed=1, max_per_gpu=32, num_workers=1, pin_memory=on_gpu)
    # FSDP's gradients are DTensors, which go without a scaler where the precision is bfloat16.
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10, growth_interval=8, enabled=args.kind != "sharded")
    precision = torch.bfloat16 if args.kind == "sharded" or not on_gpu else torch.float16
    ctx.track(model=model, optimizer=optimizer, scaler=scaler)
    log = (args.directory / f"trained-{ctx.generation}-{ctx.rank}.jsonl").open("w", buffering=1)
    trained = []
    cycles = int(args.lag * 1e3 * torch.cuda.get_device_properties(device).clock_rate) if on_gpu else 0
    for epoch in ctx.epochs(args.epochs):
        for index, x, y in loader:
            trained += index.tolist()
            with torch.autocast(device.type, precision):
                loss = nn.functional.mse_loss(model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True))
            ctx.backward(loss, scaler if scaler.is_enabled() else None)
            if ctx.step(optimizer, scaler=scaler if scaler.is_enabled() else None):
                if cycles:
                    torch.cuda._sleep(cycles)
                line = {"epoch": epoch, "step": ctx.step_count, "indices": trained, "t": time.time()}
                log.write(json.dumps(line) + "\n")
                trained = []
                time.sleep(args.pause)
                hold(args, ctx.step_count)
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    if ctx.rank == 0:
        whole = torch.utils._pytree.tree_map(
            lambda value: value.full_tensor() if hasattr(value, "full_tensor") else value, states
        )
        torch.save(whole, args.directory / "final.pt")
        sys.stdout.write(f"{ctx.device}\n")


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a test's signal may come before the shim listens
    main()
