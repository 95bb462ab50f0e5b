"""A search for hyper-parameters with Optuna's TPE, whose trials are jobs that metasched schedules.

pip install optuna                                    (or metasched[examples])
python hpo.py STUDY --trials 100 --at-once 4 -- --gres=gpu:1 --cpus-per-gpu=4
python hpo.py STUDY --trials 4 --at-once 2 --small -- --gres=gpu:1

Run it where sbatch works, such as in tmux on a login node; it takes hours and next to no CPU. STUDY is a new directory
that all nodes see: it holds Optuna's database, and a directory for each trial. At most `--at-once` trials are queued or
run at a time, and each new one is drawn by the results of the ended ones. Arguments after `--` go to sbatch.

Interrupted, the search goes on with the same command: its trials continue in Slurm, and are found by their directories.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TAG = "metasched min_gpus=1 max_gpus=4 batch=adaptive model=hpo-spirals"
POLL_SECONDS = 2.0
TIMEOUT_SECONDS = 60.0
RESULT = "result.json"
LOOKS = 3
"""Looks at the queue without a job, and at its directory without a result, until it counts as failed."""


def search(args: argparse.Namespace) -> None:
    """Submit trials and wait for them, until as many as wanted have ended, and print the best."""
    import optuna  # noqa: PLC0415  the trials need none

    args.study.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name="hpo",
        storage=f"sqlite:///{args.study.resolve() / 'study.db'}",
        sampler=optuna.samplers.TPESampler(seed=args.seed, constant_liar=True),
        direction="maximize",
        load_if_exists=True,
    )
    space = {
        "lr": optuna.distributions.FloatDistribution(1e-3, 1.0, log=True),
        "annealing": optuna.distributions.FloatDistribution(0.5, 1.0),
        "momentum": optuna.distributions.FloatDistribution(0.0, 0.95),
        "weight_decay": optuna.distributions.FloatDistribution(1e-6, 1e-2, log=True),
        "width": optuna.distributions.IntDistribution(8, 128, log=True),
    }
    missed: dict[int, int] = {}
    while True:
        waiting = [
            trial for trial in study.get_trials(deepcopy=False) if trial.state is optuna.trial.TrialState.RUNNING
        ]
        queued = queued_directories() if waiting else set()
        for trial in waiting:
            number, found = trial.number, trial_directory(args, trial.number) / RESULT
            if found.exists():
                study.tell(number, json.loads(found.read_text())["accuracy"])
                print(f"trial {number}: {study.trials[number].value:.3f} {trial.params}", flush=True)
            elif queued is None or str(found.parent) in queued:
                missed.pop(number, None)
            else:
                missed[number] = missed.get(number, 0) + 1
                if missed[number] >= LOOKS:
                    study.tell(number, state=optuna.trial.TrialState.FAIL)
                    print(f"trial {number} has failed: see {found.parent}/out.txt", flush=True)
        states = [trial.state for trial in study.get_trials(deepcopy=False)]
        running = states.count(optuna.trial.TrialState.RUNNING)
        if not running and len(states) >= args.trials:
            break
        for _ in range(min(args.at_once - running, args.trials - len(states))):
            trial = study.ask(space)
            submit(args, trial.number, trial.params)
        time.sleep(POLL_SECONDS)
    if optuna.trial.TrialState.COMPLETE in states:
        print(f"best: trial {study.best_trial.number}, {study.best_value:.3f} {study.best_params}", flush=True)


def trial_directory(args: argparse.Namespace, number: int) -> Path:
    """Return the working directory of a trial's job, which no other job has."""
    return (args.study / f"trial-{number}").resolve()


def submit(args: argparse.Namespace, number: int, parameters: dict[str, Any]) -> None:
    """Submit one trial."""
    directory = trial_directory(args, number)
    directory.mkdir(exist_ok=True)
    (directory / "parameters.json").write_text(json.dumps(parameters))
    small = ["--small"] if args.small else []
    train = shlex.join([sys.executable, str(Path(__file__).resolve()), str(directory), "--train", *small])
    script = f"#!/bin/bash\nexec metasched-run {train}\n"
    options = [f"--comment={args.tag}", f"--chdir={directory}", "--output=out.txt", f"--job-name=hpo-{number}"]
    done = subprocess.run(
        ["sbatch", "--parsable", *options, *args.sbatch],
        input=script,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode:
        sys.exit(f"sbatch: {done.stderr.strip()}")


def queued_directories() -> set[str] | None:
    """Return the working directories of the user's jobs that wait or run; None while Slurm does not answer."""
    states = "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED,COMPLETING"
    command = ["squeue", "--noheader", f"--user={os.getuid()}", states, "--format=%Z"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"squeue: {error}; the search waits", file=sys.stderr, flush=True)
        return None
    return set(done.stdout.splitlines())


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
    for _ in ctx.epochs(epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(ctx.device)), y.to(ctx.device))
            ctx.backward(loss)
            ctx.step(optimizer)
        schedule.step()
    with torch.no_grad():
        found = net(points[:unseen].to(ctx.device)).argmax(dim=1)
    if ctx.rank == 0:
        accuracy = (found.cpu() == labels[:unseen]).double().mean().item()
        new = directory / f"{RESULT}.new"
        new.write_text(json.dumps({"accuracy": accuracy}))
        new.replace(directory / RESULT)


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
    parser.add_argument("--tag", default=TAG, help="of each trial's job")
    parser.add_argument("--small", action="store_true", help="trials of seconds")
    parser.add_argument("--train", action="store_true", help="train the trial of this directory")
    args = parser.parse_args(argv, argparse.Namespace(sbatch=sbatch))
    if args.train:
        train(args.study, small=args.small)
    else:
        search(args)


if __name__ == "__main__":
    main()
