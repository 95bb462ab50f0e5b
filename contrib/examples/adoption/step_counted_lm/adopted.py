"""Trains a small transformer on characters for a number of iterations, on batches drawn at random.

python adopted.py
metasched-run python adopted.py    (in the script that sbatch gets)
"""

import math
import sys
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

import trainer_shim

eval_interval, eval_iters, log_interval = 20, 4, 10
batch_size = 4  # of a micro-batch
gradient_accumulation_steps = 4  # over all GPUs
block_size, n_layer, n_head, n_embd = 16, 2, 2, 32
learning_rate, min_lr, warmup_iters, lr_decay_iters, max_iters = 1e-3, 1e-4, 10, 80, 80
weight_decay, grad_clip = 0.1, 1.0
for argument in sys.argv[1:]:  # name=value
    name, _, value = argument.partition("=")
    globals()[name] = type(globals()[name])(value)

ctx = trainer_shim.init("checkpoints")
device = ctx.device
master_process = ctx.rank == 0
torch.manual_seed(1337)
on_gpu = device.type == "cuda"
amp = torch.amp.autocast("cuda", torch.float16) if on_gpu else nullcontext()

text = "the cat sees the queue. a small node waits for the kind scheduler. " * 40
alphabet = sorted(set(text))
tokens = torch.tensor([alphabet.index(letter) for letter in text])
data = {"train": tokens[: len(tokens) * 9 // 10], "val": tokens[len(tokens) * 9 // 10 :]}


def get_batch(split, size):
    ix = torch.randint(len(data[split]) - block_size, (size,))
    x = torch.stack([data[split][i : i + block_size] for i in ix])
    y = torch.stack([data[split][i + 1 : i + 1 + block_size] for i in ix])
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn, self.proj = nn.Linear(n_embd, 3 * n_embd, bias=False), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        q, k, v = self.attn(self.ln_1(x)).unflatten(2, (3, n_head, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(alphabet), n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.Sequential(*[Block() for _ in range(n_layer)])
        self.ln_f, self.lm_head = nn.LayerNorm(n_embd), nn.Linear(n_embd, len(alphabet), bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        logits = self.lm_head(self.ln_f(self.h(x)))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


model = GPT()
model.to(device)
scaler = torch.amp.GradScaler("cuda", enabled=on_gpu)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=weight_decay)
raw_model, model = model, ctx.wrap(model)
train_batches = ctx.random_batches(
    lambda size: get_batch("train", size),
    global_batch=batch_size * gradient_accumulation_steps,
    max_per_gpu=batch_size,
)
ctx.track(model=model, optimizer=optimizer, scaler=scaler)


@torch.no_grad()
def estimate_loss():
    out = {}
    raw_model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split, batch_size)
            with amp:
                logits, loss = raw_model(X.to(device), Y.to(device))
            losses[k] = loss.item()
        out[split] = losses.mean()
    raw_model.train()
    return out


def get_lr(it):
    """A linear warm-up, then a cosine down to the least rate."""
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = min(1.0, (it - warmup_iters) / (lr_decay_iters - warmup_iters))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


t0 = time.time()
for iter_num in ctx.steps(max_iters):
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr

    if iter_num % eval_interval == 0 and master_process:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")

    for X, Y in train_batches:
        with amp:
            logits, loss = model(X.to(device), Y.to(device))
        ctx.backward(loss, scaler)
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    ctx.step(optimizer, scaler=scaler)

    if iter_num % log_interval == 0 and master_process:
        print(f"iter {iter_num}: loss {loss.item():.4f}, time {(time.time() - t0) * 1000:.2f}ms")
    t0 = time.time()

if master_process:
    torch.save(raw_model.state_dict(), "model.pt")
