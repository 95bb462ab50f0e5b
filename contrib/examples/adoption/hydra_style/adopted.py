"""Trains a model of masked tokens, configured by hydra, with a learning rate for each step and a tracker.

metasched-run python adopted.py optimizer.lr=0.05    (in the script that sbatch gets)
"""

import json

import hydra
import torch
from hydra.utils import instantiate
from torch import nn

import trainer_shim

TOKENS, MASK, LENGTH = 20, 20, 8


class Tracker:
    """Metrics by step, one JSON line each."""

    def __init__(self, path):
        self.file = open(path, "a", buffering=1)

    def log(self, metrics, step):
        self.file.write(json.dumps({"step": step, **metrics}) + "\n")


class Sentences(torch.utils.data.Dataset):
    """Arithmetic progressions of tokens: any token follows from the others."""

    def __len__(self):
        return 320

    def __getitem__(self, index):
        start, stride = index % TOKENS, 1 + index // TOKENS % 4
        return torch.tensor([(start + stride * place) % TOKENS for place in range(LENGTH)])


class MaskTokens:
    """Joins sentences to a batch, and masks some of their tokens."""

    def __init__(self, part):
        self.part = part

    def __call__(self, sentences):
        tokens = torch.stack(sentences)
        hidden = torch.rand(tokens.shape) < self.part
        hidden[:, 0] = True  # at least one token of a sentence
        return tokens.masked_fill(hidden, MASK), tokens, hidden


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed, self.norm = nn.Embedding(TOKENS + 1, width), nn.LayerNorm(LENGTH * width)
        self.out = nn.Linear(LENGTH * width, LENGTH * TOKENS)

    def forward(self, tokens):
        return self.out(self.norm(self.embed(tokens).flatten(1))).unflatten(1, (LENGTH, TOKENS))


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    ctx = trainer_shim.init("checkpoints")
    rank, device = ctx.rank, ctx.device
    torch.manual_seed(cfg.seed)
    model = ctx.wrap(Model(cfg.width))
    batch = {"global_batch": 2 * cfg.batch_size, "max_per_gpu": cfg.batch_size}  # as two GPUs had
    loader = ctx.loader(Sentences(), **batch, seed=cfg.seed, collate_fn=MaskTokens(cfg.mask), drop_last=True)
    optimizer = instantiate(cfg.optimizer, model.parameters())
    scheduler = instantiate(cfg.scheduler, optimizer, total_steps=cfg.epochs * loader.steps_per_epoch)
    tracker = Tracker("metrics.jsonl") if rank == 0 else None

    ctx.track(model=model, optimizer=optimizer, scheduler=scheduler)

    for _ in ctx.epochs(cfg.epochs):
        for masked, tokens, hidden in loader:
            masked, tokens, hidden = masked.to(device), tokens.to(device), hidden.to(device)
            each = nn.functional.cross_entropy(model(masked).transpose(1, 2), tokens, reduction="none")
            loss = (each * hidden).sum() / hidden.sum()
            ctx.backward(loss)
            if ctx.boundary:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if ctx.step(optimizer):
                scheduler.step()
                if tracker and ctx.step_count % 10 == 0:
                    tracker.log({"loss": loss.item(), "lr": scheduler.get_last_lr()[0]}, step=ctx.step_count)
    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
