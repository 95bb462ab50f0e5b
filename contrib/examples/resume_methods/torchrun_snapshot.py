"""torchrun, and a snapshot after each epoch, as PyTorch's tutorial on fault tolerance has it."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from training import EPOCHS, GLOBAL_BATCH, Numbers, make_net, make_optimizer, record, save_model


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(make_net())
    optimizer, schedule = make_optimizer(model.parameters())
    sampler = DistributedSampler(Numbers(), seed=1)
    loader = DataLoader(Numbers(), GLOBAL_BATCH // dist.get_world_size(), sampler=sampler)
    step, first_epoch = 0, 0
    if Path("snapshot.pt").exists():
        snapshot = torch.load("snapshot.pt")
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


main()
