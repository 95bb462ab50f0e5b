"""A trainer without torch, to measure all but the training: it follows the protocol, does one step and waits.

It uses the standard library only. Its checkpoint is one small file. Its reports go to ``METASCHED_REPORTS``, or,
without metasched, to the working directory.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

STEP_SECONDS = 0.01


def age() -> float:
    """Return the seconds since this process started."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def train() -> int:
    """Train until a stop signal, and return the exit code."""
    preemption = signal.Signals[os.environ.get("METASCHED_SIGNAL", "SIGUSR2")]
    stops = {preemption, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    code = int(os.environ.get("METASCHED_EXIT_CODE", "0"))
    if os.environ.get("SLURM_PROCID", "0") != "0":
        signal.sigwait(stops)
        return code

    directory = Path(os.environ.get("METASCHED_REPORTS", "."))
    directory.mkdir(mode=0o755, exist_ok=True)
    generation = 1 + len(list(directory.glob("incarnation-*.jsonl")))
    world = int(os.environ.get("SLURM_NTASKS", "1"))
    with (directory / f"incarnation-{generation}.jsonl").open("a", buffering=1, encoding="utf-8") as reports:

        def report(kind: str, **values: object) -> None:
            reports.write(json.dumps({"v": 1, "t": time.time(), "kind": kind, **values}) + "\n")

        done = generation - 1
        report(
            "start",
            run=int(os.environ.get("METASCHED_RUN", "1")),
            incarnation=generation,
            world_size=world,
            step=done,
            samples=done * world,
            resumed=done > 0,
            init_seconds=age(),
        )
        time.sleep(STEP_SECONDS)
        done += 1
        report(
            "steps",
            step=done,
            steps=1,
            samples=world,
            seconds=STEP_SECONDS,
            loss=None,
            world_size=world,
            global_batch=world,
            per_gpu_batch=1,
            accumulation=1,
        )
        caught = signal.sigwait(stops)
        noticed = time.time()
        Path("checkpoint").write_text(f"{done}\n", encoding="utf-8")
        report("checkpoint", step=done, seconds=time.time() - noticed, bytes=2, cause="stop")
        cause = "signal" if caught == preemption else "sigterm"
        report("stop", step=done, cause=cause, noticed=noticed, checkpointed=True)
    return code


if __name__ == "__main__":
    sys.exit(train())
