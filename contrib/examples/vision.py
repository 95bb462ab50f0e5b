"""A small residual network learns to tell shapes apart, in images drawn by code and augmented at every look.

python vision.py
torchrun --nproc-per-node 2 vision.py
metasched-run python vision.py            (in the script that sbatch gets)
python -m trainer_shim.rehearse vision.py --small
"""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import trainer_shim

SIDE = 16  # pixels
SHAPES = ("disc", "square", "cross", "stripes")


class Shapes(Dataset):
    """(image, label) pairs, the same in every process; float32 of shape (1, SIDE, SIDE), and int64."""

    def __init__(self, count: int, seed: int, *, augment: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(len(SHAPES), (count,), generator=generator)
        self.images = [draw(SHAPES[label], generator) for label in self.labels.tolist()]
        self.augment = augment

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return an image, augmented alike at every world size: the shim seeds the generators for each sample."""
        image = self.images[index]
        if self.augment:
            image = image.roll(tuple(torch.randint(-2, 3, (2,)).tolist()), dims=(1, 2))
            image = image + 0.3 * torch.randn(image.shape)
        return image, self.labels[index]


def draw(kind: str, generator: torch.Generator) -> torch.Tensor:
    """Return an image of one shape, near the middle, of random size."""
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    middle = SIDE / 2 + 2 * torch.randn(2, generator=generator)
    size = 3 + 2 * torch.rand((), generator=generator)
    dx, dy = (x - middle[0]).abs(), (y - middle[1]).abs()
    square = (dx < size) & (dy < size)
    inside = {
        "disc": dx**2 + dy**2 < size**2,
        "square": square,
        "cross": square & (torch.minimum(dx, dy) < size / 3),
        "stripes": square & (y % 3 == 0),
    }
    return inside[kind].float().unsqueeze(0)


class Block(nn.Module):
    """A residual block of two convolutions. GroupNorm, because BatchNorm depends on the size of a micro-batch."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(4, after), nn.GroupNorm(4, after)])
        self.around = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of shape (n, after, h / stride, w / stride) for an input of shape (n, before, h, w)."""
        inner = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(inner)) + self.around(x))


parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints", default="checkpoints")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--images", type=int, default=2048)
parser.add_argument("--width", type=int, default=24, help="channels of the first block, a multiple of 4")
parser.add_argument("--workers", type=int, default=0, help="processes of each rank that prepare images")
parser.add_argument("--small", action="store_true", help="a run of seconds")
args = parser.parse_args()
if args.small:
    args.epochs, args.images, args.width = 2, 256, 8

ctx = trainer_shim.init(args.checkpoints)
width = args.width
net = nn.Sequential(
    Block(1, width, 1),
    Block(width, 2 * width, 2),
    Block(2 * width, 4 * width, 2),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(4 * width, len(SHAPES)),
)
model = ctx.wrap(net)
loader = ctx.loader(
    Shapes(args.images, 1, augment=True), global_batch=32, seed=1, max_per_gpu=16, num_workers=args.workers
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, args.epochs * loader.steps_per_epoch)
ctx.track(model=model, optimizer=optimizer, schedule=schedule)

unseen = Shapes(args.images // 4, 2, augment=False)
unseen_loader = DataLoader(unseen, batch_size=64, sampler=range(ctx.rank, len(unseen), ctx.size))

for epoch in ctx.epochs(args.epochs):
    model.train()
    for images, labels in loader:
        loss = functional.cross_entropy(model(images.to(ctx.device)), labels.to(ctx.device))
        ctx.backward(loss)
        if ctx.step(optimizer):
            schedule.step()

    model.eval()
    right = torch.zeros(2, device=ctx.device)  # of how many
    with torch.no_grad():
        for images, labels in ctx.evaluate(unseen_loader):
            found = net(images.to(ctx.device)).argmax(dim=1)
            right += torch.tensor([(found == labels.to(ctx.device)).sum(), len(labels)], device=ctx.device)
    torch.distributed.all_reduce(right)
    if ctx.rank == 0:
        print(f"epoch {epoch}: {100 * right[0] / right[1]:.1f}% of the unseen images are told right", flush=True)
