"""PyTorch Lightning with its own requeue by Slurm."""

import os

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments import SLURMEnvironment
from torch.utils.data import DataLoader, DistributedSampler
from training import EPOCHS, GLOBAL_BATCH, Numbers, make_net, make_optimizer, record, save_model


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = make_net()

    def training_step(self, batch, _):
        indices, x, y = batch
        record(self.trainer.global_step, self.optimizers(), indices)
        return torch.nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        optimizer, schedule = make_optimizer(self.parameters())
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        plugins=[SLURMEnvironment(auto_requeue=True)],
    )
    module = Module()
    world_size, rank = trainer.world_size, trainer.global_rank
    sampler = DistributedSampler(Numbers(), world_size, rank, seed=1)
    trainer.fit(module, DataLoader(Numbers(), GLOBAL_BATCH // world_size, sampler=sampler))
    if rank == 0:
        save_model(module.net)


main()
