"""Trains with LightningCLI; model, data and Trainer come from the command line.

srun python plain.py --trainer.max_epochs 6    (one process a GPU)
"""

import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Module(pl.LightningModule):
    def __init__(self, width: int = 32, lr: float = 1e-2):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 1))

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.mse_loss(self.net(x).squeeze(1), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Sums(pl.LightningDataModule):
    """Vectors, and the sine of their sum."""

    def __init__(self, samples: int = 320, batch_size: int = 8):
        super().__init__()
        self.batch_size = batch_size
        x = torch.randn(samples, 6, generator=torch.Generator().manual_seed(1))
        self.data = TensorDataset(x, x.sum(1).sin())

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=self.batch_size, shuffle=True)


def main():
    cli = LightningCLI(
        Module,
        Sums,
        run=False,
        seed_everything_default=1,
        save_config_callback=None,
        trainer_defaults={"max_epochs": 4, "strategy": "ddp", "devices": 2, "logger": False},
    )
    cli.trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path="last")
    if cli.trainer.is_global_zero:
        torch.save(cli.model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
