"""A trainer without torch whose speed does not depend on the machine, and which doubles its batch at given points.

    paced_trainer.py STEP_SECONDS TOTAL_STEPS FIRST_BATCH [PROGRESS ...]

Progress counts steps at the first batch. An optimizer step takes ``STEP_SECONDS`` at every batch, and the batch doubles
at each ``PROGRESS``. Each run appends the seconds that it has trained to ``trained``. Standard library only.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

REPORT_SECONDS = 0.5
POLL_SECONDS = 0.1


def wait_for_rank_0(stops: set[signal.Signals], ended: Path) -> int:
    """Wait for a stop signal, or until rank 0 has ended the training."""
    while not ended.exists():
        if signal.sigtimedwait(stops, POLL_SECONDS) is not None:
            return int(os.environ["METASCHED_EXIT_CODE"])
    return 0


def train(step_seconds: float, total: float, first_batch: int, doublings: list[float]) -> int:
    """Train until the end or a stop signal, and return the exit code."""
    stops = {signal.Signals[os.environ["METASCHED_SIGNAL"]], signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    checkpoint, ended = Path("checkpoint"), Path("ended")
    if os.environ.get("SLURM_PROCID", "0") != "0":
        return wait_for_rank_0(stops, ended)

    began = time.time()
    directory = Path(os.environ["METASCHED_REPORTS"])
    directory.mkdir(mode=0o755, exist_ok=True)
    incarnation = 1 + len(list(directory.glob("incarnation-*.jsonl")))
    world = int(os.environ.get("SLURM_NTASKS", "1"))
    saved = json.loads(checkpoint.read_text(encoding="utf-8")) if checkpoint.exists() else [0, 0, 0.0]
    step, samples, progress = saved
    with (directory / f"incarnation-{incarnation}.jsonl").open("a", buffering=1, encoding="utf-8") as reports:

        def report(kind: str, **values: object) -> None:
            reports.write(json.dumps({"v": 1, "t": time.time(), "kind": kind, **values}) + "\n")

        run = {"run": int(os.environ["METASCHED_RUN"]), "incarnation": incarnation, "world_size": world}
        report("start", **run, step=step, samples=samples, progress=progress, resumed=step > 0, init_seconds=0.1)
        declared = {"total_steps": int(total), "global_batch": first_batch, "first_batch": first_batch}
        if doublings:
            adapts = {"adapts": "gns", "regimes": len(doublings) + 1, "max_batch": first_batch << len(doublings)}
            report("declare", **declared, **adapts)
        else:
            report("declare", **declared)
        due = reported_at = time.time()
        steps = 0
        caught = None
        while progress < total and caught is None:
            doubled = sum(progress >= each for each in doublings)
            due += step_seconds
            caught = signal.sigtimedwait(stops, max(due - time.time(), 0.0))
            if caught is not None:
                break
            batch = first_batch << doubled
            step, samples, progress, steps = step + 1, samples + batch, progress + 2**doubled, steps + 1
            changes = sum(progress >= each for each in doublings) > doubled
            if time.time() - reported_at >= REPORT_SECONDS or changes or progress >= total:
                report(
                    "steps",
                    step=step,
                    steps=steps,
                    samples=steps * batch,
                    seconds=steps * step_seconds,
                    loss=None,
                    world_size=world,
                    global_batch=batch,
                    per_gpu_batch=max(batch // world, 1),
                    accumulation=1,
                    **({"progress": progress} if doublings else {}),
                )
                reported_at, steps = time.time(), 0
        checkpoint.write_text(json.dumps([step, samples, progress]), encoding="utf-8")
        with Path("trained").open("a", encoding="utf-8") as trained:
            trained.write(f"{time.time() - began}\n")
        if caught is None:
            report("checkpoint", step=step, seconds=0.0, bytes=1, cause="final")
            report("end", step=step, samples=samples, loss=None, progress=progress)
            ended.touch()
            return 0
        cause = "sigterm" if caught.si_signo == signal.SIGTERM else "signal"
        report("checkpoint", step=step, seconds=0.0, bytes=1, cause="stop")
        report("stop", step=step, progress=progress, cause=cause, noticed=time.time(), checkpointed=True)
    return int(os.environ["METASCHED_EXIT_CODE"])


if __name__ == "__main__":
    given = [float(text) for text in sys.argv[1:]]
    sys.exit(train(given[0], given[1], int(given[2]), given[3:]))
