"""Trains an image classifier by epochs, with one process for each GPU and snapshots of its own.

python plain.py
torchrun --nproc-per-node 2 plain.py --resume checkpoint.pth.tar
"""

import argparse
import os
import shutil
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--start-epoch", type=int, default=0)
parser.add_argument("-b", "--batch-size", type=int, default=16, help="of all GPUs together")
parser.add_argument("-j", "--workers", type=int, default=0)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--weight-decay", type=float, default=1e-4)
parser.add_argument("--print-freq", type=int, default=5)
parser.add_argument("--resume", default="", help="snapshot to continue from")
parser.add_argument("--evaluate", action="store_true")
parser.add_argument("--world-size", type=int, default=int(os.environ.get("WORLD_SIZE", "1")))
parser.add_argument("--rank", type=int, default=int(os.environ.get("RANK", "0")))
parser.add_argument("--dist-url", default="env://")
parser.add_argument("--gpu", type=int, default=None)
parser.add_argument("--multiprocessing-distributed", action="store_true", help="one process for each GPU of this node")
parser.add_argument("--seed", type=int, default=0)
best_acc1 = 0.0


def main():
    args = parser.parse_args()
    ngpus = torch.cuda.device_count()
    args.distributed = args.world_size > 1 or args.multiprocessing_distributed
    if args.multiprocessing_distributed:
        args.world_size *= ngpus
        mp.spawn(main_worker, nprocs=ngpus, args=(ngpus, args))
    else:
        main_worker(args.gpu, max(ngpus, 1), args)


def main_worker(gpu, ngpus, args):
    global best_acc1
    args.gpu = gpu
    torch.manual_seed(args.seed)
    if args.distributed:
        if args.multiprocessing_distributed:
            args.rank = args.rank * ngpus + gpu
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
    device = torch.device("cuda", args.gpu or 0) if torch.cuda.is_available() else torch.device("cpu")
    model = make_model().to(device)
    if args.distributed:
        args.batch_size = args.batch_size // dist.get_world_size()
        args.workers = (args.workers + ngpus - 1) // ngpus
        model = nn.parallel.DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device])

    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)

    if args.resume:
        if os.path.isfile(args.resume):
            checkpoint = torch.load(args.resume, map_location=device)
            args.start_epoch = checkpoint["epoch"]
            best_acc1 = checkpoint["best_acc1"]
            model.load_state_dict(checkpoint["state_dict"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            print(f"=> loaded {args.resume} (epoch {checkpoint['epoch']})")
        else:
            print(f"=> no checkpoint found at {args.resume}")

    train_dataset, val_dataset = make_images(320, seed=1), make_images(64, seed=2)
    if args.distributed:
        train_sampler = DistributedSampler(train_dataset)
        val_sampler = DistributedSampler(val_dataset, shuffle=False, drop_last=True)
    else:
        train_sampler = val_sampler = None
    train_loader = DataLoader(
        train_dataset,
        batch_size=args.batch_size,
        shuffle=(train_sampler is None),
        num_workers=args.workers,
        sampler=train_sampler,
    )
    val_loader = DataLoader(val_dataset, batch_size=args.batch_size, num_workers=args.workers, sampler=val_sampler)

    if args.evaluate:
        validate(val_loader, model, criterion, device)
        return

    for epoch in range(args.start_epoch, args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        adjust_learning_rate(optimizer, epoch, args)
        train(train_loader, model, criterion, optimizer, epoch, device, args)
        acc1 = validate(val_loader, model, criterion, device)
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        if args.rank == 0:
            state = {
                "epoch": epoch + 1,
                "state_dict": model.state_dict(),
                "best_acc1": best_acc1,
                "optimizer": optimizer.state_dict(),
            }
            save_checkpoint(state, is_best)
    if args.rank == 0:
        torch.save(getattr(model, "module", model).state_dict(), "model.pt")


def train(train_loader, model, criterion, optimizer, epoch, device, args):
    batch_time, losses = AverageMeter("Time"), AverageMeter("Loss")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        images, target = images.to(device), target.to(device)
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), len(images))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            print(f"Epoch [{epoch}] {i}/{len(train_loader)} {batch_time} {losses}")


def validate(val_loader, model, criterion, device):
    correct = torch.zeros(2, device=device)
    model.eval()
    with torch.no_grad():
        for images, target in val_loader:
            output = model(images.to(device))
            correct[0] += (output.argmax(dim=1) == target.to(device)).sum()
            correct[1] += len(target)
    if dist.is_initialized():
        dist.all_reduce(correct)
    acc1 = (100 * correct[0] / correct[1]).item()
    print(f" * Acc@1 {acc1:.3f}")
    return acc1


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best.pth.tar")


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
