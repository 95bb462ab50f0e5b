"""torchft, whose replica groups go on without a lost one; a stop of all of them needs a snapshot, made each epoch."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torchft
from torch.utils.data import DataLoader
from training import EPOCHS, GLOBAL_BATCH, Numbers, make_net, make_optimizer, record, save_model


def main():
    group, groups = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["NUM_REPLICA_GROUPS"])
    net = make_net()
    optimizer, schedule = make_optimizer(net.parameters())

    def state():
        return {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}

    def load_state(found):
        net.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        schedule.load_state_dict(found["schedule"])

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(),
        min_replica_size=groups,
        load_state_dict=load_state,
        state_dict=state,
        replica_id=f"group-{group}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    model = torchft.DistributedDataParallel(manager, net)
    managed = torchft.Optimizer(manager, optimizer)
    sampler = torchft.DistributedSampler(Numbers(), group, groups, group_rank=0, num_replicas=1, seed=1)
    loader = DataLoader(Numbers(), GLOBAL_BATCH // groups, sampler=sampler)
    if Path("snapshot.pt").exists():
        snapshot = torch.load("snapshot.pt")
        load_state(snapshot["state"])
        manager.load_state_dict(snapshot["manager"])
    for epoch in range(manager.current_step() // len(loader), EPOCHS):
        sampler.set_epoch(epoch)
        for indices, x, y in loader:
            managed.zero_grad()
            record(manager.current_step(), optimizer, indices)
            torch.nn.functional.mse_loss(model(x), y).backward()
            managed.step()
            schedule.step()
        if group == 0:
            torch.save({"state": state(), "manager": manager.state_dict()}, "snapshot.pt")
    if group == 0:
        save_model(net)
    manager.shutdown()


main()
