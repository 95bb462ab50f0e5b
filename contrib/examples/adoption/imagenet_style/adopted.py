"""Trains an image classifier by epochs, on any number of GPUs.

python adopted.py
metasched-run python adopted.py    (in the script that sbatch gets)
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainer_shim

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("-b", "--batch-size", type=int, default=16, help="of all GPUs together")
parser.add_argument("-j", "--workers", type=int, default=0)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--weight-decay", type=float, default=1e-4)
parser.add_argument("--print-freq", type=int, default=5)
parser.add_argument("--evaluate", action="store_true")
parser.add_argument("--seed", type=int, default=0)


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    ctx = trainer_shim.init("checkpoints")
    device = ctx.device
    model = ctx.wrap(make_model())

    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)

    train_dataset, val_dataset = make_images(320, seed=1), make_images(64, seed=2)
    train_loader = ctx.loader(train_dataset, global_batch=args.batch_size, num_workers=args.workers)
    val_sampler = range(ctx.rank, len(val_dataset), ctx.size)
    val_loader = DataLoader(val_dataset, batch_size=args.batch_size, num_workers=args.workers, sampler=val_sampler)
    best = trainer_shim.Values(acc1=0.0)
    ctx.track(model=model, optimizer=optimizer, best=best)

    if args.evaluate:
        validate(ctx.evaluate(val_loader), model, criterion, device)
        return

    for epoch in ctx.epochs(args.epochs):
        adjust_learning_rate(optimizer, epoch, args)
        train(train_loader, model, criterion, optimizer, epoch, device, args, ctx)
        acc1 = validate(ctx.evaluate(val_loader), model, criterion, device)
        is_best = acc1 > best.acc1
        best.acc1 = max(acc1, best.acc1)
        if ctx.rank == 0 and is_best:
            torch.save(model.module.state_dict(), "model_best.pt")
    if ctx.rank == 0:
        torch.save(model.module.state_dict(), "model.pt")


def train(train_loader, model, criterion, optimizer, epoch, device, args, ctx):
    batch_time, losses = AverageMeter("Time"), AverageMeter("Loss")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        images, target = images.to(device), target.to(device)
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), len(images))
        ctx.backward(loss)
        ctx.step(optimizer)
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            print(f"Epoch [{epoch}] {i}/{train_loader.steps_per_epoch} {batch_time} {losses}")


def validate(val_loader, model, criterion, device):
    correct = torch.zeros(2, device=device)
    model.eval()
    with torch.no_grad():
        for images, target in val_loader:
            output = model(images.to(device))
            correct[0] += (output.argmax(dim=1) == target.to(device)).sum()
            correct[1] += len(target)
    dist.all_reduce(correct)
    acc1 = (100 * correct[0] / correct[1]).item()
    print(f" * Acc@1 {acc1:.3f}")
    return acc1


def adjust_learning_rate(optimizer, epoch, args):
    """The initial learning rate, a tenth of it after each two epochs."""
    lr = args.lr * (0.1 ** (epoch // 2))
    for group in optimizer.param_groups:
        group["lr"] = lr


class AverageMeter:
    """The latest value, and the mean of all."""

    def __init__(self, name):
        self.name, self.value, self.total, self.count = name, 0.0, 0.0, 0

    def update(self, value, n=1):
        self.value, self.total, self.count = value, self.total + value * n, self.count + n

    def __str__(self):
        return f"{self.name} {self.value:.3f} ({self.total / self.count:.3f})"


def make_model():
    """GroupNorm: BatchNorm's averages depend on the samples that a GPU sees at once."""
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2)]
    return nn.Sequential(
        *layers, nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
    )


def make_images(count, seed):
    """Noise with a bright stripe; its row is the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    images = torch.randn(count, 1, 12, 12, generator=generator)
    images[torch.arange(count), 0, 3 * labels] += 2
    return TensorDataset(images, labels)


if __name__ == "__main__":
    main()
