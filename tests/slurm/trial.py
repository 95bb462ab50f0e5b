"""A trial of a search that speaks the shim's protocol without torch; its loss is its array task.

`trial.py DIRECTORY STEPS GATE...`. Just before the step of a gate it waits until the test makes the file `gate-<step>`,
so that all trials do that step together. It checkpoints when it is asked to stop, and, once the file `deaf` is gone,
when its lease asks it to finish. Rank 0 does all that; the other ranks of a gang wait for the same.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

STEP_SECONDS = 0.1
GLOBAL_BATCH = 4
WORLD_SIZE = int(os.environ.get("SLURM_NTASKS", "1"))
SIZES = {
    "world_size": WORLD_SIZE,
    "global_batch": GLOBAL_BATCH,
    "per_gpu_batch": GLOBAL_BATCH // WORLD_SIZE,
    "accumulation": 1,
}


def follow(stops, ended):
    """What ranks other than rank 0 do."""
    while signal.sigtimedwait(stops, STEP_SECONDS) is None:
        if ended():
            return 0
    return int(os.environ["METASCHED_EXIT_CODE"])


def main():
    directory, total, *gates = Path(sys.argv[1]), *map(int, sys.argv[2:])
    task = os.environ["SLURM_ARRAY_TASK_ID"]
    lease = Path(os.environ["METASCHED_LEASE"])
    stops = {signal.Signals[os.environ["METASCHED_SIGNAL"]], signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)

    def finish_asked():
        return json.loads(lease.read_text())["finish"] and not (directory / "deaf").exists()

    trained = directory / f"trained-{task}"
    if os.environ.get("SLURM_PROCID", "0") != "0":
        return follow(stops, lambda: trained.exists() or finish_asked())

    checkpoint = directory / f"checkpoint-{task}"
    done = json.loads(checkpoint.read_text())["step"] if checkpoint.exists() else 0
    reports = Path(os.environ["METASCHED_REPORTS"])
    reports.mkdir(mode=0o755, exist_ok=True)
    generation = 1 + len(list(reports.glob("incarnation-*.jsonl")))
    run = int(os.environ["METASCHED_RUN"])
    with (reports / f"incarnation-{generation}.jsonl").open("a", buffering=1) as lines:

        def report(kind, **values):
            lines.write(json.dumps({"v": 1, "t": time.time(), "kind": kind, **values}) + "\n")

        def save(cause):
            checkpoint.write_text(json.dumps({"step": done, "cause": cause}))
            report("checkpoint", step=done, seconds=0.0, bytes=1, cause=cause)

        start = {"run": run, "incarnation": generation, "world_size": WORLD_SIZE, "step": done}
        start["samples"] = done * GLOBAL_BATCH
        report("start", **start, resumed=done > 0, init_seconds=0.1)
        report("declare", total_steps=total)
        while (caught := signal.sigtimedwait(stops, STEP_SECONDS)) is None:
            if finish_asked():
                save("final")
                return 0
            if done + 1 in gates and not (directory / f"gate-{done + 1}").exists():
                continue
            done += 1
            report("steps", step=done, steps=1, samples=GLOBAL_BATCH, seconds=STEP_SECONDS, loss=float(task), **SIZES)
            if done >= total:
                save("final")
                trained.touch()
                return 0
        save("stop")
        cause = "sigterm" if caught.si_signo == signal.SIGTERM else "signal"
        report("stop", step=done, cause=cause, noticed=time.time(), checkpointed=True)
    return int(os.environ["METASCHED_EXIT_CODE"])


if __name__ == "__main__":
    sys.exit(main())
