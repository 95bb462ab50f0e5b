"""AdaptDL, with the batch fixed: it saves and exits at the end of a step after a SIGINT or SIGTERM."""

import adaptdl.torch as adl  # reads the variables that `training` sets
import torch
from training import EPOCHS, GLOBAL_BATCH, Numbers, make_net, make_optimizer, record, save_model


def main():
    adl.init_process_group("gloo")
    net = make_net()
    optimizer, schedule = make_optimizer(net.parameters())
    model = adl.AdaptiveDataParallel(net, optimizer, schedule)
    loader = adl.AdaptiveDataLoader(Numbers(), batch_size=GLOBAL_BATCH, shuffle=True)
    for _ in adl.remaining_epochs_until(EPOCHS):
        for indices, x, y in loader:
            record(schedule.last_epoch, optimizer, indices)
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    if torch.distributed.get_rank() == 0:
        save_model(net)


main()
