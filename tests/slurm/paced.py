"""A trainer whose speed depends on the type of GPU that it was given; it speaks the shim's protocol without torch.

`paced.py DIRECTORY type=steps/s...`. It "trains" by sleeping, reports that speed whatever the machine makes of it,
checkpoints when it is asked to stop, and writes the clock into `beats` with every step: a test sees when it ran.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

REPORT_SECONDS = 0.4


def main():
    directory, *rates = sys.argv[1:]
    directory = Path(directory)
    lease = json.loads(Path(os.environ["METASCHED_LEASE"]).read_text())
    seconds = 1 / float(dict(rate.split("=") for rate in rates)[lease["gpu_type"]])
    stops = {signal.Signals[os.environ["METASCHED_SIGNAL"]], signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)

    checkpoint = directory / "checkpoint"
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    reports = Path(os.environ["METASCHED_REPORTS"])
    reports.mkdir(mode=0o755, exist_ok=True)
    generation = 1 + len(list(reports.glob("incarnation-*.jsonl")))
    run = int(os.environ["METASCHED_RUN"])
    with (reports / f"incarnation-{generation}.jsonl").open("a", buffering=1) as lines:

        def report(kind, **values):
            lines.write(json.dumps({"v": 1, "t": time.time(), "kind": kind, **values}) + "\n")

        start = {"run": run, "incarnation": generation, "world_size": 1, "step": done, "samples": done}
        report("start", **start, resumed=done > 0, init_seconds=0.1)
        begun, since = time.time(), done
        # After a suspension that outlasts the timeout, Python may return no signal at all as if it were one.
        while (caught := signal.sigtimedwait(stops, seconds)) is None or caught.si_signo not in stops:
            done += 1
            with (directory / "beats").open("a") as beats:
                beats.write(f"{time.time()}\n")
            if time.time() - begun >= REPORT_SECONDS:
                batch = {"world_size": 1, "global_batch": 1, "per_gpu_batch": 1, "accumulation": 1}
                steps = done - since
                report("steps", step=done, steps=steps, samples=steps, seconds=steps * seconds, loss=None, **batch)
                begun, since = time.time(), done
        checkpoint.write_text(str(done))
        cause = "sigterm" if caught.si_signo == signal.SIGTERM else "signal"
        report("stop", step=done, cause=cause, noticed=time.time(), checkpointed=True)
    return int(os.environ["METASCHED_EXIT_CODE"])


if __name__ == "__main__":
    sys.exit(main())
