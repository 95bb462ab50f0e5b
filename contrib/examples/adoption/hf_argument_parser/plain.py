"""Trains with the Hugging Face Trainer; model, data and training options come from the command line.

torchrun --nproc-per-node 2 plain.py --num_train_epochs 6
"""

import os
from dataclasses import dataclass

import torch
from torch import nn
from transformers import HfArgumentParser, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


@dataclass
class ModelArguments:
    width: int = 32


@dataclass
class DataArguments:
    samples: int = 320


class Sums(torch.utils.data.Dataset):
    """Vectors, and the sine of their sum."""

    def __init__(self, samples):
        self.x = torch.randn(samples, 6, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.x[index].sum().sin()}


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x, labels):
        return {"loss": nn.functional.mse_loss(self.net(x).squeeze(1), labels)}


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    parser.set_defaults(
        output_dir="output",
        per_device_train_batch_size=8,
        num_train_epochs=4,
        learning_rate=1e-2,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        disable_tqdm=True,
    )
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    torch.manual_seed(training_args.seed)
    trainer = Trainer(Model(model_args.width), training_args, train_dataset=Sums(data_args.samples))
    checkpoint = get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
    trainer.train(resume_from_checkpoint=checkpoint)
    if trainer.is_world_process_zero():
        torch.save(trainer.model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
