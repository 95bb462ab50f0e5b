"""Plain DDP: a stop loses everything."""

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
    step = 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for indices, x, y in loader:
            record(step, optimizer, indices)
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step += 1
    if dist.get_rank() == 0:
        save_model(model.module)
    dist.destroy_process_group()


main()
