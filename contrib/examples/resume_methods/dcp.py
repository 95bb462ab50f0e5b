"""torch.distributed.checkpoint at a stop signal; the position in the data is the script's own work."""

import itertools
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from training import EPOCHS, GLOBAL_BATCH, Numbers, make_net, make_optimizer, record, save_model


class TrainingState:
    """Model, optimizer, schedule and position, in the form that `dcp.save` and `dcp.load` take."""

    def __init__(self, model, optimizer, schedule):
        self.model, self.optimizer, self.schedule, self.step = model, optimizer, schedule, 0

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "schedule": self.schedule.state_dict(), "step": self.step}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.step = state["step"]


def main():
    stopping = []
    signal.signal(signal.SIGUSR2, lambda *_: stopping.append(True))
    dist.init_process_group("gloo")
    model = DistributedDataParallel(make_net())
    optimizer, schedule = make_optimizer(model.parameters())
    sampler = DistributedSampler(Numbers(), seed=1)
    loader = DataLoader(Numbers(), GLOBAL_BATCH // dist.get_world_size(), sampler=sampler)
    state = TrainingState(model, optimizer, schedule)
    if Path("dcp/.metadata").exists():
        dcp.load({"training": state}, checkpoint_id="dcp")
    for epoch in range(state.step // len(loader), EPOCHS):
        sampler.set_epoch(epoch)
        for indices, x, y in itertools.islice(loader, state.step % len(loader), None):
            record(state.step, optimizer, indices)
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            state.step += 1
            votes = torch.tensor(len(stopping))
            dist.all_reduce(votes)
            if votes:
                dcp.save({"training": state}, checkpoint_id="dcp")
                sys.exit(85)
    if dist.get_rank() == 0:
        save_model(model.module)
    dist.destroy_process_group()


main()
