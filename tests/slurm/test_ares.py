"""Ares on a real cluster: a job learns what more GPUs are worth, has them, and gives them back."""

import json
import os
import subprocess
import sys
from hashlib import sha256

import pytest
import torch

from tests.slurm.site import ROOT, TRAIN

# A step reads eight samples one after the other on one GPU, and two on each of four: so the job scales.
DATA = "--samples 64 --global-batch 8"
STEPS_PER_EPOCH = 8


def losses(directory):
    """Return {step: mean loss of its samples} over all ranks, of each step by the last trainer that made it."""
    parts = {}
    for path in directory.glob("trained-*-*.jsonl"):
        generation = int(path.name.split("-")[1])
        for text in path.read_text().splitlines(keepends=True):
            if text.endswith("\n"):
                line = json.loads(text)
                parts.setdefault(line["step"], {}).setdefault(generation, []).append(line)
    found = {}
    for step, by_incarnation in parts.items():
        lines = by_incarnation[max(by_incarnation)]
        found[step] = sum(line["loss_sum"] for line in lines) / sum(len(line["indices"]) for line in lines)
    return found


def undisturbed(directory, epochs):
    """The same training in one process, never stopped."""
    directory.mkdir()
    argv = [sys.executable, str(TRAIN), str(directory), *DATA.split(), "--epochs", str(epochs)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(argv, env=env, check=True, timeout=60, capture_output=True)
    return directory


def test_a_job_grows_beyond_its_request_and_shrinks_back(small_site, tmp_path):
    """Its loss at each step and its parameters equal those of the same training without preemption.

    The job's speed is measured on one GPU. No other job can use the rest, so the job is profiled on two GPUs, and runs
    on four. Its speed scales, so it keeps them until another job is submitted.
    """
    site = small_site
    site.configure(policy="ares", parameters="alpha = 0.5")
    site.start()
    site.wait(site.status)
    slurm_job_id, directory = site.train(
        f"{DATA} --epochs 100000 --read-seconds 0.04 --finish-file enough",
        "--gres=gpu:1",
        tag="metasched min_gpus=1 max_gpus=4 model=net-b8 trials=yes",
    )

    def learnt():
        with site.store() as store:
            return {sum(record.spread) for record in store.speeds()} >= {1, 2, 4}

    site.wait(learnt)
    decided = site.status().round

    def kept():
        job = site.job(slurm_job_id)
        on = sum(job.nodes.values())
        return site.status().round > decided + 1 and (on, job.reason.count("to learn")) == (4, 0)

    site.wait(kept)
    other = site.submit("exec sleep 1000", "--gres=gpu:3")
    site.wait_status(other, "running")
    site.wait(lambda: site.job(slurm_job_id).world_sizes == (1, 4, 1))
    before = len(losses(directory))
    site.wait(lambda: len(losses(directory)) > before + 2)
    (directory / "enough").touch()
    assert site.wait_status(slurm_job_id, "completed").world_sizes == (1, 4, 1)

    with site.store() as store:
        assert store.job(site.job(slurm_job_id).uid).script == sha256((directory / "job.sh").read_bytes()).hexdigest()
    found = losses(directory)
    epochs, rest = divmod(len(found), STEPS_PER_EPOCH)
    assert rest == 0
    reference = undisturbed(tmp_path / "undisturbed", epochs)
    assert found == pytest.approx(losses(reference), rel=1e-9)
    one, other = (torch.load(place / "final.pt") for place in (directory, reference))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
