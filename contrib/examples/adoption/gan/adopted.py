"""Trains a generator against a discriminator, each with its own optimizer, by DDP.

metasched-run python adopted.py    (in the script that sbatch gets)
"""

import argparse

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import TensorDataset

import trainer_shim

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batch-size", type=int, default=16, help="of all GPUs together")
parser.add_argument("--nz", type=int, default=4, help="numbers of the noise from which an image is made")
parser.add_argument("--lr", type=float, default=2e-4)


class Samples(TensorDataset):
    """Points of a ring, each with its noise for the generator."""

    def __init__(self, count, nz):
        angles = torch.linspace(0, 6.28, count)
        super().__init__(torch.stack((angles.cos(), angles.sin()), dim=1))
        self.nz = nz

    def __getitem__(self, index):
        return super().__getitem__(index)[0], torch.randn(self.nz)


def main():
    opt = parser.parse_args()
    ctx = trainer_shim.init("checkpoints")
    device = ctx.device
    torch.manual_seed(7)
    netG = DDP(nn.Sequential(nn.Linear(opt.nz, 32), nn.ReLU(), nn.Linear(32, 2)).to(device))
    netD = DDP(nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).to(device))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=opt.lr, betas=(0.5, 0.999))
    optimizerD = torch.optim.Adam(netD.parameters(), lr=opt.lr, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()

    dataset = Samples(320, opt.nz)
    loader = ctx.loader(dataset, global_batch=opt.batch_size, drop_last=True)
    ctx.track(netG=netG, netD=netD, optimizerG=optimizerG, optimizerD=optimizerD)

    for epoch in ctx.epochs(opt.epochs):
        for i, (real, noise) in enumerate(loader):
            real, noise = real.to(device), noise.to(device)
            ones, zeros = torch.ones(len(real), 1, device=device), torch.zeros(len(real), 1, device=device)
            fake = netG(noise)

            # The discriminator: real points are 1, made ones 0.
            optimizerD.zero_grad()
            outputs = netD(torch.cat((real, fake.detach())))
            errD = criterion(outputs, torch.cat((ones, zeros)))
            ctx.backward(errD)
            optimizerD.step()

            # The generator: its points are to be taken for real ones.
            optimizerG.zero_grad()
            netD.requires_grad_(False)
            errG = criterion(netD.module(fake), ones)
            ctx.backward(errG)
            netD.requires_grad_(True)
            ctx.step(optimizerG)
            if i % 10 == 0 and ctx.rank == 0:
                print(f"[{epoch}/{opt.epochs}][{i}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f}")
    if ctx.rank == 0:
        torch.save(netG.module.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
