"""submitit: a callable with a `checkpoint` method, and a snapshot after each epoch, as DeiT's launcher has it."""

import os
from pathlib import Path

import submitit
import torch
import torch.distributed as dist
from submitit.core.submission import process_job
from submitit.core.utils import DelayedSubmission
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from training import EPOCHS, GLOBAL_BATCH, Numbers, make_net, make_optimizer, record, save_model


class Trainer:
    def __init__(self, resume=None):
        self.resume = resume

    def __call__(self):
        dist.init_process_group("gloo")
        model = DistributedDataParallel(make_net())
        optimizer, schedule = make_optimizer(model.parameters())
        sampler = DistributedSampler(Numbers(), seed=1)
        loader = DataLoader(Numbers(), GLOBAL_BATCH // dist.get_world_size(), sampler=sampler)
        step, first_epoch = 0, 0
        if self.resume:
            snapshot = torch.load(self.resume)
            model.module.load_state_dict(snapshot["model"])
            optimizer.load_state_dict(snapshot["optimizer"])
            schedule.load_state_dict(snapshot["schedule"])
            step, first_epoch = snapshot["step"], snapshot["epoch"]
        for epoch in range(first_epoch, EPOCHS):
            sampler.set_epoch(epoch)
            for indices, x, y in loader:
                record(step, optimizer, indices)
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                step += 1
            if dist.get_rank() == 0:
                snapshot = {
                    "model": model.module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(),
                    "step": step,
                    "epoch": epoch + 1,
                }
                torch.save(snapshot, "snapshot.pt")
        if dist.get_rank() == 0:
            save_model(model.module)
        dist.destroy_process_group()

    def checkpoint(self):
        resume = "snapshot.pt" if Path("snapshot.pt").exists() else None
        return submitit.helpers.DelayedSubmission(Trainer(resume))


def main():
    """Do what submitit's executor and its batch script do, in a process that the comparison has started."""
    names = ("JOB_ID", "NTASKS", "JOB_NUM_NODES", "NODEID", "GLOBALID", "LOCALID")
    values = ("1", os.environ["WORLD_SIZE"], "1", "0", os.environ["RANK"], os.environ["RANK"])
    os.environ |= {f"SUBMITIT_LOCAL_{name}": value for name, value in zip(names, values, strict=True)}
    os.environ["SUBMITIT_EXECUTOR"] = "local"
    folder, pickle = Path("submitit"), Path("submitit/1_submitted.pkl")
    folder.mkdir(exist_ok=True)
    if os.environ["RANK"] == "0" and not pickle.exists():
        submission = DelayedSubmission(Trainer())
        submission.set_timeout(60, 3)
        submission.dump(pickle)
    process_job(folder)


main()
