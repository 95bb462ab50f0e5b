"""The same small training, stopped and resumed at other sizes, with the shim and with other tools."""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contrib.benchmarks.adoption import changed_lines, final_model, largest_difference
from contrib.benchmarks.common import arguments, finish, say
from contrib.benchmarks.training_starts import ROOT, Start, StartError, StartProcess, Training, start_python
from metasched.cli.tables import console, row, table

SCRIPTS = ROOT / "contrib" / "examples" / "resume_methods"
SIZES = (2, 1, 2)
STOP_AT = 28
"""The optimizer step of a start before which the signal comes: in the middle of an epoch of 20 steps."""
ROUNDING = 1e-9
"""The largest difference of parameters, in float64, that counts as rounding."""


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to stop and resume a training.

    Attributes:
        words: its name in the table.
        script: its script in `contrib/examples/resume_methods`.
        needs: the packages that it needs besides torch.
        number: the signal that stops it.
        environ: variables of every rank.
    """

    words: str
    script: str
    needs: tuple[str, ...] = ()
    number: signal.Signals = signal.SIGUSR2
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)


METHODS = {
    "shim": Method("trainer shim", "shim"),
    "lightning": Method(
        "Lightning's requeue",
        "lightning_requeue",
        ("pytorch_lightning",),
        signal.SIGUSR1,
        {"STARTED_AS": "slurm"},
    ),
    "submitit": Method("submitit", "submitit_checkpoint", ("submitit", "cloudpickle")),
    "snapshot": Method("torchrun + snapshot", "torchrun_snapshot", (), signal.SIGTERM),
    "dcp": Method("DCP + own position", "dcp"),
    "torchft": Method(
        "torchft + snapshot",
        "torchft_snapshot",
        ("torchft", "opentelemetry"),
        signal.SIGTERM,
        {"STARTED_AS": "torchft"},
    ),
    "adaptdl": Method(
        "AdaptDL",
        "adaptdl_elastic",
        ("adaptdl", "pkg_resources", "semver"),
        signal.SIGTERM,
        {"STARTED_AS": "adaptdl", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},  # its checkpoints are older than torch 2.6
    ),
}


def missing(method: Method) -> list[str]:
    """Return the packages that the method needs and that are not installed."""
    return [package for package in method.needs if importlib.util.find_spec(package) is None]


def trained(directory: Path) -> tuple[dict[int, dict[str, Any]], int]:
    """Return what the surviving starts have trained, and the steps that were trained again.

    A step that several starts have trained counts as the last of them trained it, because that start resumed from a
    state before the step.

    Returns:
        By step: `start`, `lr`, and the `indices` of its samples over all ranks; and the number of steps that an earlier
        start had trained, too.
    """
    starts: dict[int, dict[int, dict[str, Any]]] = {}
    for path in sorted(directory.glob("trained-*.jsonl")):
        number = int(path.stem.split("-")[1])
        for text in path.read_text().splitlines():
            line = json.loads(text)
            steps = starts.setdefault(number, {})
            step = steps.setdefault(line["step"], {"start": number, "lr": line["lr"], "indices": []})
            step["indices"] += line["indices"]
    surviving: dict[int, dict[str, Any]] = {}
    repeated = 0
    for number in sorted(starts):
        first = min(starts[number])
        # the step before which the signal came was not made, whatever its record says
        repeated += sum(step >= first for step in surviving) - (1 if surviving else 0)
        surviving = {step: found for step, found in surviving.items() if step < first} | starts[number]
    return surviving, max(repeated, 0)


def samples_of_epochs(steps: Mapping[int, Mapping[str, Any]], per_epoch: int, samples: int) -> tuple[int, int]:
    """Return how many samples were trained more than once, and never, in an epoch, over all epochs.

    Args:
        steps: as `trained` returns them.
        per_epoch: the optimizer steps of an epoch.
        samples: the samples of an epoch.
    """
    twice = never = 0
    for epoch in range(1 + max(steps) // per_epoch):
        counts: collections.Counter[int] = collections.Counter()
        for step in range(epoch * per_epoch, (epoch + 1) * per_epoch):
            counts.update(steps[step]["indices"] if step in steps else [])
        twice += sum(count > 1 for count in counts.values())
        never += samples - len(counts)
    return twice, never


def run(
    method: Method,
    directory: Path,
    sizes: tuple[int, ...],
    start_process: StartProcess = start_python,
    *,
    augment: bool = False,
) -> None:
    """Run a method's script at each of the sizes, with a stop between two.

    Raises:
        StartError: a start did not reach the step of its stop, or the last one failed.
    """
    directory.mkdir(parents=True)
    requeued, stub = directory / "requeued", directory / "bin" / "scontrol"
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\ntouch {requeued}\n")
    stub.chmod(0o755)
    environ = {**method.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}", **({"AUGMENT": "1"} if augment else {})}
    argv = [str(SCRIPTS / f"{method.script}.py")]
    training = Training(directory, argv, environ=environ, pace=0.02, start_process=start_process)
    for size in sizes[:-1]:
        training.run(Start(size, STOP_AT, method.number, to_all=True, ended_by=requeued))
        requeued.unlink(missing_ok=True)
    codes, _ = training.run(Start(sizes[-1]))
    if any(codes):
        raise StartError(training.describe(codes))


def compare(method: Method, directory: Path, start_process: StartProcess = start_python) -> dict[str, Any]:
    """Return what holds after the stops, compared with the method's own undisturbed run at the first size.

    Raises:
        StartError: a start failed.
    """
    found: dict[str, Any] = {}
    for augment in (False, True):
        base = directory / ("augmented" if augment else "plain")
        run(method, base / "undisturbed", SIZES[:1], start_process, augment=augment)
        run(method, base / "stopped", SIZES, start_process, augment=augment)
        difference = largest_difference(*(final_model(base / name) for name in ("undisturbed", "stopped")))
        found["augmented" if augment else "difference"] = difference
    undisturbed, _ = trained(directory / "plain" / "undisturbed")
    stopped, repeated = trained(directory / "plain" / "stopped")
    per_epoch = len(undisturbed) // 4
    samples = sum(len(undisturbed[step]["indices"]) for step in range(per_epoch))
    twice, never = samples_of_epochs(stopped, per_epoch, samples)
    rates = [abs(stopped[step]["lr"] - undisturbed[step]["lr"]) < ROUNDING for step in undisturbed if step in stopped]
    right = all(rates) and stopped.keys() == undisturbed.keys()
    return found | {"repeated_steps": repeated, "twice": twice, "never": never, "schedule": right}


def result(method: Method, directory: Path) -> dict[str, Any]:
    """Return the row of a method; `error` or `missing` stand for what could not be measured."""
    written, deleted = changed_lines(SCRIPTS / "plain.py", SCRIPTS / f"{method.script}.py")
    found: dict[str, Any] = {"written": written, "deleted": deleted}
    absent = missing(method)
    if absent:
        return found | {"missing": absent}
    try:
        return found | compare(method, directory)
    except StartError as error:
        say(f"{method.words}: {error}")
        return found | {"error": str(error)}


def cells(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a row that show the runs."""
    if "missing" in found:
        return (f"not installed: {', '.join(found['missing'])}",)
    if "error" in found:
        return ("failed",)

    def equality(difference: float) -> str:
        return "yes" if difference <= ROUNDING else f"no: {difference:.1e} apart"

    return (
        str(found["repeated_steps"]),
        f"{found['twice']} / {found['never']}",
        "yes" if found["schedule"] else "no",
        equality(found["difference"]),
        equality(found["augmented"]),
    )


def main() -> None:
    """Compare the methods, and print the table."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--method", choices=METHODS, action="append", help="(default: all)")
    options = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory(prefix="resume-") as base:
        for name in options.method or METHODS:
            say(f"{name} ...")
            rows[name] = result(METHODS[name], Path(base) / name)
    runs = ("steps again", "samples twice / never", "schedule right", "parameters equal", "with augmentation")
    shown = table("method", "written", "deleted", *runs)
    for name, found in rows.items():
        row(shown, METHODS[name].words, found["written"], found["deleted"], *cells(found))
    console().print(shown)
    finish({"benchmark": "resume_comparison", "methods": rows}, as_json=options.json)
    sys.exit(0 if all("error" not in found for found in rows.values()) else 1)


if __name__ == "__main__":
    main()
