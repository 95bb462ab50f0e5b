"""Trains an image classifier with mixup, averaged weights and a gradient scaler behind a function of its own.

metasched-run python adopted.py    (in the script that sbatch gets)
"""

import argparse
import copy
import math

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainer_shim

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16, help="of all GPUs together")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--lr", type=float, default=1e-2, help="for a global batch of 16")
parser.add_argument("--min-lr", type=float, default=1e-4)
parser.add_argument("--clip-grad", type=float, default=1.0)
parser.add_argument("--mixup", type=float, default=0.8)
parser.add_argument("--smoothing", type=float, default=0.1)
parser.add_argument("--model-ema-decay", type=float, default=0.99)
parser.add_argument("--seed", type=int, default=0)
CLASSES = 4


class Mixup:
    """Mixes each sample with its mirror in the batch, by one factor for the whole batch."""

    def __init__(self, alpha, smoothing):
        self.alpha, self.smoothing = alpha, smoothing

    def __call__(self, x, target):
        assert len(x) % 2 == 0, "Batch size should be even when using this"
        lam = np.random.beta(self.alpha, self.alpha)
        off, on = self.smoothing / CLASSES, 1 - self.smoothing + self.smoothing / CLASSES
        one_hot = torch.full((len(x), CLASSES), off).scatter_(1, target[:, None], on)
        return x * lam + x.flip(0) * (1 - lam), one_hot * lam + one_hot.flip(0) * (1 - lam)


class ModelEma:
    """Averaged weights."""

    def __init__(self, model, decay):
        self.module, self.decay = copy.deepcopy(model).eval().requires_grad_(False), decay

    def update(self, model):
        with torch.no_grad():
            for average, value in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
                average.copy_(self.decay * average + (1 - self.decay) * value)

    def state_dict(self):
        return self.module.state_dict()

    def load_state_dict(self, state):
        self.module.load_state_dict(state)


class NativeScaler:
    """Backward pass, clipping and optimizer step in one call."""

    def __init__(self, device):
        self._scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")

    def __call__(self, loss, optimizer, clip_grad, parameters, need_update=True):
        self._scaler.scale(loss).backward()
        if not need_update:
            return
        self._scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self):
        return self._scaler.state_dict()

    def load_state_dict(self, state):
        self._scaler.load_state_dict(state)


def train_one_epoch(model, loader, optimizer, device, loss_scaler, args, model_ema, mixup_fn, ctx):
    model.train()
    for samples, targets in loader:
        samples, targets = mixup_fn(samples.to(device), targets.to(device))
        with torch.autocast(device.type, enabled=device.type == "cuda"):
            loss = torch.sum(-targets * model(samples).log_softmax(dim=1), dim=1).mean()
        if not math.isfinite(loss.item()):
            raise SystemExit(f"Loss is {loss.item()}, stopping training")
        loss_scaler(ctx.weighted(loss), optimizer, args.clip_grad, model.parameters(), need_update=ctx.boundary)
        if ctx.step():
            optimizer.zero_grad()
            model_ema.update(model.module)


@torch.no_grad()
def evaluate(loader, model, device):
    model.eval()
    correct = torch.zeros(2, device=device)
    for samples, targets in loader:
        correct[0] += (model(samples.to(device)).argmax(dim=1) == targets.to(device)).sum()
        correct[1] += len(targets)
    dist.all_reduce(correct)
    return (100 * correct[0] / correct[1]).item()


def make_images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    images = torch.randn(count, 16, generator=generator)
    images[torch.arange(count), 4 * labels] += 2
    return TensorDataset(images, labels)


def main():
    args = parser.parse_args()
    ctx = trainer_shim.init("checkpoints")
    device = ctx.device
    torch.manual_seed(args.seed)

    dataset_train, dataset_val = make_images(320, seed=1), make_images(64, seed=2)
    sampler_val = range(ctx.rank, len(dataset_val), ctx.size)
    data_loader_train = ctx.loader(
        dataset_train, global_batch=args.batch_size, max_per_gpu=8, multiple_of=2, drop_last=True
    )
    data_loader_val = DataLoader(dataset_val, sampler=sampler_val, batch_size=args.batch_size)
    mixup_fn = Mixup(args.mixup, args.smoothing)

    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, CLASSES)).to(device)
    model_ema = ModelEma(model, args.model_ema_decay)
    model = nn.parallel.DistributedDataParallel(model)
    args.lr = args.lr * args.batch_size / 16
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss_scaler = NativeScaler(device)
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs, args.min_lr)

    best = trainer_shim.Values(accuracy=0.0)
    ctx.track(
        model=model, optimizer=optimizer, lr_scheduler=lr_scheduler, model_ema=model_ema, scaler=loss_scaler, best=best
    )
    for epoch in ctx.epochs(args.epochs):
        train_one_epoch(model, data_loader_train, optimizer, device, loss_scaler, args, model_ema, mixup_fn, ctx)
        lr_scheduler.step()
        accuracy = evaluate(ctx.evaluate(data_loader_val), model, device)
        best.accuracy = max(best.accuracy, accuracy)
        print(f"epoch {epoch}: accuracy {accuracy:.1f}%, max {best.accuracy:.1f}%")
    if dist.get_rank() == 0:
        torch.save(model_ema.module.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
