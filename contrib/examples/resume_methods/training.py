"""What the scripts of the comparison share: data, model, schedule, and a record of what was trained."""

import json
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

SAMPLES, GLOBAL_BATCH, EPOCHS = 320, 16, 4
STEPS = EPOCHS * SAMPLES // GLOBAL_BATCH
AUGMENT = bool(os.environ.get("AUGMENT"))
# Groups live as long as the process: where a script's end frees the last reference, torch waits for gloo's threads
# while it holds Python's lock, and a thread that frees the last collective waits for that lock (torch 2.13).
kept_groups = set()


class Numbers(Dataset):
    """Samples (index, x, y); with AUGMENT, x has noise that is drawn anew at each look."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
        self.y = self.x.sum(dim=1, keepdim=True).sin()

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        noise = 0.1 * torch.randn(6, dtype=torch.float64) if AUGMENT else 0
        return index, self.x[index] + noise, self.y[index]


def make_net():
    """Return the network; its first weights are the same in every process."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1)).double()


def make_optimizer(parameters):
    """Return the optimizer, and its schedule: half a cosine over all steps."""
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    factor = lambda step: 0.5 * (1 + math.cos(math.pi * min(step, STEPS) / STEPS))
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def record(step, optimizer, indices):
    """Write down a micro-batch of optimizer step `step`, counted from 0 over all starts, before that step."""
    kept_groups.add(dist.group.WORLD)
    rank, start = os.environ.get("RANK", "0"), os.environ["METASCHED_RUN"]
    line = {"step": step, "lr": optimizer.param_groups[0]["lr"], "indices": indices.tolist()}
    with Path(f"trained-{start}-{rank}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def save_model(net):
    """Write the final parameters."""
    torch.save(net.state_dict(), "model.pt")


def as_slurm_task():
    """Let this process look like a task of a Slurm step, with the ranks of torchrun."""
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    os.environ |= {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": size, "SLURM_NODEID": "0"}
    os.environ |= {"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "train", "SLURM_NODELIST": "localhost", "SLURM_NNODES": "1"}
    os.environ |= {"SLURM_NTASKS_PER_NODE": size, "SLURM_STEP_NUM_TASKS": size}


def as_adaptdl_replica():
    """Give this process the variables of AdaptDL's scheduler, from those of torchrun."""
    os.environ |= {"ADAPTDL_REPLICA_RANK": os.environ["RANK"], "ADAPTDL_NUM_REPLICAS": os.environ["WORLD_SIZE"]}
    os.environ |= {"ADAPTDL_MASTER_ADDR": "127.0.0.1", "ADAPTDL_MASTER_PORT": os.environ["MASTER_PORT"]}
    os.environ |= {"ADAPTDL_NUM_RESTARTS": str(int(os.environ["METASCHED_RUN"]) - 1), "ADAPTDL_NUM_NODES": "1"}
    os.environ |= {"ADAPTDL_CHECKPOINT_PATH": str(Path("adaptdl").absolute())}
    Path("adaptdl").mkdir(exist_ok=True)


def as_torchft_group():
    """Let this process be a replica group of torchft, and rank 0 serve the lighthouse, which has a host of its own."""
    rank, size, port = os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"]
    os.environ |= {"REPLICA_GROUP_ID": rank, "NUM_REPLICA_GROUPS": size}
    os.environ["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{port}"
    if rank == "0":
        from torchft.coordination import LighthouseServer  # noqa: PLC0415  the other scripts need no torchft

        return LighthouseServer(bind=f"127.0.0.1:{port}", min_replicas=int(size), join_timeout_ms=60000)
    return None


if os.environ.get("STARTED_AS") == "slurm":
    as_slurm_task()
if os.environ.get("STARTED_AS") == "adaptdl":
    as_adaptdl_replica()
if os.environ.get("STARTED_AS") == "torchft":
    lighthouse = as_torchft_group()
