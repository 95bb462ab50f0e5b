"""A small transformer learns, from nothing, to write the sentences of a toy language.

python language_model.py
torchrun --nproc-per-node 2 language_model.py
metasched-run python language_model.py    (in the script that sbatch gets)
python -m trainer_shim.rehearse language_model.py --small
"""

import argparse
import math
import random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import trainer_shim

GRAMMAR = {
    "sentence": ["the noun verb the noun .", "the noun that verb the noun verb the noun .", "a noun verb ."],
    "noun": ["cat", "queue", "scheduler", "kind noun", "small noun", "node near the noun"],
    "verb": ["sees", "waits for", "quietly verb", "preempts"],
}
ALPHABET = sorted(set("abcdefghijklmnopqrstuvwxyz ."))


def say(word: str, chance: random.Random) -> str:
    """Return the expansion of a symbol of the grammar."""
    if word not in GRAMMAR:
        return word
    return " ".join(say(part, chance) for part in chance.choice(GRAMMAR[word]).split())


class Text(Dataset):
    """Windows of a text, each with the same window one character later: int64 of shape (length,)."""

    def __init__(self, windows: int, length: int, seed: int) -> None:
        chance, text = random.Random(seed), ""  # noqa: S311  no secrets here
        pieces: list[str] = []
        while sum(map(len, pieces)) + len(pieces) <= windows * length:
            pieces += [say("sentence", chance) for _ in range(100)]
        text = " ".join(pieces)
        self.text = torch.tensor([ALPHABET.index(letter) for letter in text[: windows * length + 1]])
        self.length = length

    def __len__(self) -> int:
        """Return the number of windows."""
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one window, and the character that follows each of its characters."""
        start = index * self.length
        return self.text[start : start + self.length], self.text[start + 1 : start + self.length + 1]


class Block(nn.Module):
    """A transformer block: causal attention, then a perceptron, each added to its normalised input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of shape (n, length, width) for an input of that shape."""
        query, key, value = self.attend(self.norms[0](x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + functional.dropout(self.project(seen.transpose(1, 2).flatten(2)), self.dropout, self.training)
        return x + functional.dropout(self.perceptron(self.norms[1](x)), self.dropout, self.training)


class Transformer(nn.Module):
    """A causal transformer that predicts the next character."""

    def __init__(self, length: int, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(ALPHABET), width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, 4, dropout) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(ALPHABET), bias=False)
        self.head.weight = self.letters.weight  # the same table reads and writes
        for table in (self.letters, self.places):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the scores of shape (n, length, characters) for characters of shape (n, length)."""
        places = torch.arange(text.shape[1], device=text.device)
        return self.head(self.norm(self.blocks(self.letters(text) + self.places(places))))


parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints", default="checkpoints")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--windows", type=int, default=2048, help="of the text, in an epoch")
parser.add_argument("--length", type=int, default=64, help="characters in a window")
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--depth", type=int, default=2, help="blocks")
parser.add_argument("--dropout", type=float, default=0.0, help="draws anew for each micro-batch, so for each size")
parser.add_argument("--amp", choices=("no", "bfloat16", "float16"), default="no", help="compute in lower precision")
parser.add_argument("--small", action="store_true", help="a run of seconds")
args = parser.parse_args()
if args.small:
    args.epochs, args.windows, args.length, args.width, args.depth = 2, 320, 32, 32, 2

ctx = trainer_shim.init(args.checkpoints)
net = Transformer(args.length, args.width, args.depth, args.dropout)
model = ctx.wrap(net)
loader = ctx.loader(Text(args.windows, args.length, seed=7), global_batch=32, seed=1, max_per_gpu=16)
total, warm_up = args.epochs * loader.steps_per_epoch, loader.steps_per_epoch // 4


def rate(step: int) -> float:
    """Return the factor of the learning rate: a linear warm-up, then half a cosine down to 0."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (total - warm_up)))


optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
scaler = torch.amp.GradScaler(ctx.device.type, enabled=args.amp == "float16")
ctx.track(model=model, optimizer=optimizer, schedule=schedule, scaler=scaler)
precision = torch.autocast(ctx.device.type, getattr(torch, args.amp, torch.bfloat16), enabled=args.amp != "no")

unseen = Text(args.windows // 8, args.length, seed=8)
unseen_loader = DataLoader(unseen, batch_size=16, sampler=range(ctx.rank, len(unseen), ctx.size))


def loss_of(network: nn.Module, text: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over a batch's characters."""
    with precision:
        scores = network(text.to(ctx.device))
        return functional.cross_entropy(scores.flatten(0, 1), following.to(ctx.device).flatten())


for epoch in ctx.epochs(args.epochs):
    model.train()
    for text, following in loader:
        ctx.backward(loss_of(model, text, following), scaler)
        if ctx.boundary:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if ctx.step(optimizer, scaler=scaler):
            schedule.step()

    model.eval()
    loss = torch.zeros(2, device=ctx.device)  # of how many windows
    with torch.no_grad():
        for text, following in ctx.evaluate(unseen_loader):
            loss += torch.stack((loss_of(net, text, following) * len(text), loss.new_tensor(len(text))))
    torch.distributed.all_reduce(loss)
    if ctx.rank == 0:
        print(f"epoch {epoch}: loss {loss[0] / loss[1]:.3f} on unseen text", flush=True)

if ctx.rank == 0:  # every rank has the same weights
    net.eval()
    letters = torch.tensor([[ALPHABET.index(letter) for letter in "the "]], device=ctx.device)
    with torch.no_grad():
        for _ in range(60):
            score = net(letters[:, -args.length :])[:, -1]
            letters = torch.cat((letters, score.argmax(dim=1, keepdim=True)), dim=1)
    print("".join(ALPHABET[letter] for letter in letters[0].tolist()), flush=True)
