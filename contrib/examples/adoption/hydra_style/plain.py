"""Trains a model of masked tokens, configured by hydra, with a learning rate for each step and a tracker.

torchrun --nproc-per-node 2 plain.py optimizer.lr=0.05 resume=snapshot.pt
"""

import json
import os

import hydra
import torch
import torch.distributed as dist
from hydra.utils import instantiate
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

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
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(cfg.seed)
    model = DistributedDataParallel(Model(cfg.width).to(device))
    sampler = DistributedSampler(Sentences(), seed=cfg.seed)
    loader = DataLoader(Sentences(), cfg.batch_size, sampler=sampler, collate_fn=MaskTokens(cfg.mask), drop_last=True)
    optimizer = instantiate(cfg.optimizer, model.parameters())
    scheduler = instantiate(cfg.scheduler, optimizer, total_steps=cfg.epochs * len(loader))
    tracker = Tracker("metrics.jsonl") if rank == 0 else None

    global_step, start_epoch = 0, 0
    if cfg.resume:
        snapshot = torch.load(cfg.resume, map_location=device)
        model.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        scheduler.load_state_dict(snapshot["scheduler"])
        global_step, start_epoch = snapshot["global_step"], snapshot["epoch"]

    for epoch in range(start_epoch, cfg.epochs):
        sampler.set_epoch(epoch)
        for masked, tokens, hidden in loader:
            masked, tokens, hidden = masked.to(device), tokens.to(device), hidden.to(device)
            each = nn.functional.cross_entropy(model(masked).transpose(1, 2), tokens, reduction="none")
            loss = (each * hidden).sum() / hidden.sum()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            global_step += 1
            if tracker and global_step % 10 == 0:
                tracker.log({"loss": loss.item(), "lr": scheduler.get_last_lr()[0]}, step=global_step)
        if rank == 0:
            snapshot = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "global_step": global_step,
                "epoch": epoch + 1,
            }
            torch.save(snapshot, "snapshot.pt")
    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
