"""The trainer shim."""

import torch
from torch.nn.parallel import DistributedDataParallel
from training import EPOCHS, GLOBAL_BATCH, Numbers, make_net, make_optimizer, record, save_model

import trainer_shim


def main():
    ctx = trainer_shim.init("checkpoints")
    model = DistributedDataParallel(make_net())
    optimizer, schedule = make_optimizer(model.parameters())
    loader = ctx.loader(Numbers(), global_batch=GLOBAL_BATCH, seed=1)
    ctx.track(model=model, optimizer=optimizer, schedule=schedule)
    for _ in ctx.epochs(EPOCHS):
        for indices, x, y in loader:
            record(ctx.step_count, optimizer, indices)
            ctx.backward(torch.nn.functional.mse_loss(model(x), y))
            if ctx.step(optimizer):
                schedule.step()
    if ctx.rank == 0:
        save_model(model.module)


main()
