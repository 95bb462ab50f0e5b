"""Trains with Accelerate."""

import common
import torch
from accelerate import Accelerator
from metasched_accelerate import ElasticAccelerate


def main():
    args = common.parse()
    shim = ElasticAccelerate(
        args.directory / "checkpoints",
        global_batch=args.global_batch,
        max_per_gpu=args.max_per_gpu,
        seed=1,
        checkpoint_every=args.checkpoint_every,
    )
    log = common.Log(args, shim.companion)
    accelerator = Accelerator(**shim.options(cpu=True, log_with=common.open_tracker(args, shim)))
    accelerator.init_trackers("a test")
    net = common.make_net(args.dropout)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    loader = shim.loader(common.Numbers(args.samples))
    model, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)
    shim.start(accelerator, epochs=common.EPOCHS)
    for _ in shim.epochs():
        for batch in shim.batches(loader):
            log.trained(batch["index"])
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if accelerator.sync_gradients:
                    schedule.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                accelerator.log({"loss": loss.item()}, step=shim.companion.step + 1)
            shim.step(loss)
    common.finish(args, net)


if __name__ == "__main__":
    main()
