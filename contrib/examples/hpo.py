"""A search for hyper-parameters with Optuna's TPE and median pruner, whose trials are jobs that metasched schedules.

pip install optuna                                    (or metasched[examples])
python hpo.py STUDY --trials 100 --at-once 4 -- --gres=gpu:1 --cpus-per-gpu=4
python hpo.py STUDY --trials 4 --at-once 2 --small -- --gres=gpu:1

Run it where sbatch works, such as in tmux on a login node; it takes hours and next to no CPU. STUDY is a new directory
that all nodes see: it holds Optuna's database, and a directory for each trial. At most `--at-once` trials are queued or
run at a time, and each new one is drawn by the results of the ended ones. A trial that is worse than the median of the
others is ended early. Arguments after `--` go to sbatch. METASCHED_SHARED must be set.

Interrupted, the search goes on with the same command: its trials continue in Slurm, and are found by their names.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path

TAG = "min_gpus=1 max_gpus=4 batch=adaptive model=hpo-spirals"
POLL_SECONDS = 2.0


def search(args: argparse.Namespace) -> None:
    """Submit trials and wait for them, until as many as wanted have ended, and print the best."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integrations"))
    import optuna  # noqa: PLC0415  the trials need none
    from metasched_optuna import TrialJobs  # noqa: PLC0415

    args.study.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name="hpo",
        storage=f"sqlite:///{args.study.resolve() / 'study.db'}",
        sampler=optuna.samplers.TPESampler(seed=args.seed, constant_liar=True),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=0 if args.small else 2000),
        load_if_exists=True,
    )
    space = {
        "lr": optuna.distributions.FloatDistribution(1e-3, 1.0, log=True),
        "annealing": optuna.distributions.FloatDistribution(0.5, 1.0),
        "momentum": optuna.distributions.FloatDistribution(0.0, 0.95),
        "weight_decay": optuna.distributions.FloatDistribution(1e-6, 1e-2, log=True),
        "width": optuna.distributions.IntDistribution(8, 128, log=True),
    }
    small = ["--small"] if args.small else []
    train = shlex.join([sys.executable, str(Path(__file__).resolve()), ".", "--train", *small])
    jobs = TrialJobs(study, args.study, sbatch=args.sbatch, tag=args.tag)
    while (running := jobs.follow()) or len(study.trials) < args.trials:
        for _ in range(min(args.at_once - running, args.trials - len(study.trials))):
            jobs.submit(study.ask(space), f"exec metasched-run {train}")
        time.sleep(POLL_SECONDS)
    for trial in study.trials:
        value = "" if trial.value is None else f" {trial.value:.3f}"
        print(f"trial {trial.number}: {trial.state.name.lower()}{value} {trial.params}", flush=True)
    if any(trial.state is optuna.trial.TrialState.COMPLETE for trial in study.trials):
        print(f"best: trial {study.best_trial.number}, error {study.best_value:.3f} {study.best_params}", flush=True)


def train(directory: Path, *, small: bool) -> None:
    """Train one classifier of spirals with the trial's parameters, at any number of GPUs and any batch."""
    import torch  # noqa: PLC0415  the search needs none
    from torch import nn  # noqa: PLC0415
    from torch.utils.data import TensorDataset  # noqa: PLC0415

    import trainer_shim  # noqa: PLC0415

    given = json.loads((directory / "parameters.json").read_text())
    samples, epochs = (1024, 3) if small else (65536, 40)
    ctx = trainer_shim.init(directory / "checkpoints")
    torch.manual_seed(0)
    labels = torch.randint(3, (samples,))
    radius = torch.rand(samples)
    angle = 2.1 * labels + 4 * radius + 0.1 * torch.randn(samples)
    points = torch.stack((radius * angle.cos(), radius * angle.sin()), dim=1)
    unseen = samples // 4

    width = given["width"]
    net = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))
    model = ctx.wrap(net)
    data = TensorDataset(points[unseen:], labels[unseen:])
    loader = ctx.loader(data, global_batch=64, seed=1, max_batch=1024, max_per_gpu=256, lr_scale="adascale")
    optimizer = torch.optim.SGD(
        model.parameters(), lr=given["lr"], momentum=given["momentum"], weight_decay=given["weight_decay"]
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, given["annealing"])
    ctx.track(model=model, optimizer=optimizer, schedule=schedule)
    unseen_points, unseen_labels = points[:unseen].to(ctx.device), labels[:unseen].to(ctx.device)
    for _ in ctx.epochs(epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(ctx.device)), y.to(ctx.device))
            ctx.backward(loss)
            ctx.step(optimizer)
        schedule.step()
        with torch.no_grad():
            ctx.metric((net(unseen_points).argmax(dim=1) != unseen_labels).double().mean())


def main() -> None:
    """Search, or, inside of a job, train one trial."""
    argv, sbatch = sys.argv[1:], []
    if "--" in argv:
        at = argv.index("--")
        argv, sbatch = argv[:at], argv[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, metavar="STUDY")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tag", default=TAG, help="further keys of each trial's tag")
    parser.add_argument("--small", action="store_true", help="trials of seconds")
    parser.add_argument("--train", action="store_true", help="train the trial of this directory")
    args = parser.parse_args(argv, argparse.Namespace(sbatch=sbatch))
    if args.train:
        train(args.study, small=args.small)
    else:
        search(args)


if __name__ == "__main__":
    main()
