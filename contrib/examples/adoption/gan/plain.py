"""Trains a generator against a discriminator, each with its own optimizer, by DDP.

torchrun --nproc-per-node 2 plain.py --resume latest.pth
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batch-size", type=int, default=16, help="of all GPUs together")
parser.add_argument("--nz", type=int, default=4, help="numbers of the noise from which an image is made")
parser.add_argument("--lr", type=float, default=2e-4)
parser.add_argument("--resume", default="")


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
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(7)
    netG = DDP(nn.Sequential(nn.Linear(opt.nz, 32), nn.ReLU(), nn.Linear(32, 2)).to(device))
    netD = DDP(nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).to(device))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=opt.lr, betas=(0.5, 0.999))
    optimizerD = torch.optim.Adam(netD.parameters(), lr=opt.lr, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()

    dataset = Samples(320, opt.nz)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=opt.batch_size // dist.get_world_size(), sampler=sampler, drop_last=True)

    start_epoch = 0
    if opt.resume:
        state = torch.load(opt.resume, map_location=device)
        netG.load_state_dict(state["netG"])
        netD.load_state_dict(state["netD"])
        optimizerG.load_state_dict(state["optimizerG"])
        optimizerD.load_state_dict(state["optimizerD"])
        start_epoch = state["epoch"] + 1

    for epoch in range(start_epoch, opt.epochs):
        sampler.set_epoch(epoch)
        for i, (real, noise) in enumerate(loader):
            real, noise = real.to(device), noise.to(device)
            ones, zeros = torch.ones(len(real), 1, device=device), torch.zeros(len(real), 1, device=device)
            fake = netG(noise)

            # The discriminator: real points are 1, made ones 0.
            optimizerD.zero_grad()
            outputs = netD(torch.cat((real, fake.detach())))
            errD = criterion(outputs, torch.cat((ones, zeros)))
            errD.backward()
            optimizerD.step()

            # The generator: its points are to be taken for real ones.
            optimizerG.zero_grad()
            netD.requires_grad_(False)
            errG = criterion(netD.module(fake), ones)
            errG.backward()
            netD.requires_grad_(True)
            optimizerG.step()
            if i % 10 == 0 and rank == 0:
                print(f"[{epoch}/{opt.epochs}][{i}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f}")
        if rank == 0:
            state = {
                "netG": netG.state_dict(),
                "netD": netD.state_dict(),
                "optimizerG": optimizerG.state_dict(),
                "optimizerD": optimizerD.state_dict(),
                "epoch": epoch,
            }
            torch.save(state, "latest.pth")
    if rank == 0:
        torch.save(netG.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
