"""Trains with PyTorch Lightning."""

import common
import pytorch_lightning as pl
import torch
from metasched_lightning import ElasticLightning


class Module(pl.LightningModule):
    def __init__(self, dropout):
        super().__init__()
        self.net = common.make_net(dropout)
        self.log_of_indices = None

    def training_step(self, batch, _):
        self.log_of_indices.trained(batch["index"])
        loss = torch.nn.functional.mse_loss(self.net(batch["x"]), batch["y"])
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        self.log("valid", torch.nn.functional.mse_loss(self.net(batch["x"]), batch["y"]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    args = common.parse()
    shim = ElasticLightning(
        args.directory / "checkpoints",
        global_batch=args.global_batch,
        max_per_gpu=args.max_per_gpu,
        seed=1,
        checkpoint_every=args.checkpoint_every,
    )
    module = Module(args.dropout)
    module.log_of_indices = common.Log(args, shim.companion)
    quiet = {
        "logger": common.open_tracker(args, shim),
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(
        **shim.options(max_epochs=common.EPOCHS, accelerator="cpu", gradient_clip_val=1.0, precision="64-true", **quiet)
    )
    data = common.Numbers(args.samples)
    trainer.fit(module, shim.loader(data), torch.utils.data.DataLoader(data, batch_size=24), ckpt_path=shim.resume)
    common.finish(args, module.net)


if __name__ == "__main__":
    main()
