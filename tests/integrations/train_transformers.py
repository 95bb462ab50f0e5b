"""Trains with the Trainer of Hugging Face's Transformers."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import common
import torch
from metasched_transformers import ElasticCallback
from transformers import Trainer, TrainingArguments
from transformers.integrations import integration_utils


class Board(MagicMock):
    """TensorBoard's writer, as far as it says where it writes."""

    def __init__(self, log_dir=None, **options):
        super().__init__(**options)
        if log_dir:
            Path(log_dir).mkdir(parents=True, exist_ok=True)
            Path(log_dir, f"events-{os.getpid()}").touch()


class Module(torch.nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.net = common.make_net(dropout)
        self.log_of_indices = None

    def forward(self, index, x, y):
        self.log_of_indices.trained(index)
        return {"loss": torch.nn.functional.mse_loss(self.net(x), y)}


def main():
    args = common.parse()
    integration_utils.is_tensorboard_available = lambda: True
    sys.modules["torch.utils.tensorboard"] = SimpleNamespace(SummaryWriter=Board)
    shim = ElasticCallback(
        args.directory / "checkpoints",
        global_batch=args.global_batch,
        max_per_gpu=args.max_per_gpu,
        seed=1,
        checkpoint_every=args.checkpoint_every,
    )
    module = Module(args.dropout)
    module.log_of_indices = common.Log(args, shim.companion)
    arguments = TrainingArguments(
        **shim.arguments(
            num_train_epochs=common.EPOCHS,
            learning_rate=0.01,
            logging_steps=1,
            report_to=["tensorboard"],
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
        )
    )
    callbacks = [shim, common.open_tracker(args, shim)]
    trainer = Trainer(module, arguments, train_dataset=common.Numbers(args.samples), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=shim.resume)
    common.finish(args, module.net)


if __name__ == "__main__":
    main()
