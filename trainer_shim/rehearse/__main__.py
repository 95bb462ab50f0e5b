"""The command: `python -m trainer_shim.rehearse [options] train.py [arguments]`."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from trainer_shim.rehearse.causes import likely_causes
from trainer_shim.rehearse.compare import Verdict, compare
from trainer_shim.rehearse.errors import RehearsalError
from trainer_shim.rehearse.history import read_history
from trainer_shim.rehearse.launch import RunSetup, run_start
from trainer_shim.rehearse.plain import (
    STEPS,
    FirstStep,
    compare_with_plain,
    first_steps,
    plain_causes,
    read_plain_steps,
)
from trainer_shim.rehearse.plan import Event, Start, plan_disturbance
from trainer_shim.rehearse.state import default_tolerance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainer_shim.rehearse.history import History

EQUAL, DIFFERENT, FAILED = 0, 1, 2


def main(arguments: list[str] | None = None) -> int:
    """Rehearse; return 0 where the results are equal, 1 where they differ, 2 where the script failed."""
    args = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_by_signal)
    try:
        with _scratch(keep=args.keep) as scratch:
            return _rehearse(args, scratch)
    except RehearsalError as error:
        if args.json:
            _show(json.dumps({"result": "failed", "error": str(error)}))
        else:
            _show(str(error))
            if not args.here and "No such file" in str(error):
                _show("The script ran in an empty directory of its own; with --here it runs in this one.")
        return FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001  Python's own exit code, 1, means that the results differ
        traceback.print_exc()
        if args.json:
            _show(json.dumps({"result": "failed", "error": repr(error)}))
        return FAILED


@contextlib.contextmanager
def _scratch(*, keep: bool) -> Iterator[Path]:
    """Context manager: a directory for this rehearsal, removed at the end unless `keep` is set."""
    scratch = Path(tempfile.mkdtemp(prefix="rehearse-"))
    try:
        yield scratch
    finally:
        if keep:
            _log(f"kept: {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer_shim.rehearse",
        description="Run a script undisturbed, then through stops, resizes and kills, and compare the results.",
        epilog="Exit code: 0 the results are equal, 1 they differ, 2 the script failed.",
    )
    parser.add_argument("--sizes", type=_sizes, default=[1, 4, 2, 3], help="world sizes, in turn (default: 1,4,2,3)")
    parser.add_argument("--kills", type=_count, default=2, help="how often a rank is killed (default: 2)")
    parser.add_argument("--steps", type=_positive, help="rehearse only the first STEPS optimizer steps")
    parser.add_argument(
        "--against", type=Path, metavar="PLAIN", help="the script without the shim, whose first steps are compared, too"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the steps and ranks that are hit (default: 0)")
    parser.add_argument(
        "--tolerance",
        type=_tolerance,
        help="largest difference that counts as rounding, relative to the largest magnitude in a tensor or 1 (default: "
        "the square root of the coarsest floating type's epsilon, 3.5e-4 for float32)",
    )
    parser.add_argument("--timeout", type=_seconds, default=600.0, help="seconds for each start (default: 600)")
    parser.add_argument("--here", action="store_true", help="run in this directory, instead of an empty one")
    parser.add_argument("--keep", action="store_true", help="keep outputs, records and checkpoints, and say where")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own")
    return parser


def _rehearse(args: argparse.Namespace, scratch: Path) -> int:
    script = args.script.resolve()
    if not script.is_file():
        raise RehearsalError(f"{args.script}: there is no such script")
    limit = Event(args.steps, 0, kill=False) if args.steps else None

    undisturbed = _run("undisturbed", [Start(args.sizes[0], limit)], script, args, scratch)
    if limit and limit.step not in undisturbed.steps:
        limit = None  # the script has ended before that step
    starts = plan_disturbance(args.sizes, args.kills, undisturbed.last_steps, args.seed)
    starts[-1] = starts[-1]._replace(event=limit)
    disturbed = _run("disturbed", starts, script, args, scratch)

    leaves = [leaf for state in undisturbed.state.values() for leaf in state.values()]
    tolerance = default_tolerance(leaves) if args.tolerance is None else args.tolerance
    checks = compare(undisturbed, disturbed, tolerance)
    causes = likely_causes(undisturbed, disturbed, checks, tolerance)
    if args.against is not None:
        plain, elastic = _plain_steps(args, scratch), first_steps(undisturbed)
        checks += compare_with_plain(plain, elastic)
        causes += plain_causes(plain, elastic)
    equal = all(check.verdict is not Verdict.DIFFERS for check in checks)
    if args.json:
        report: dict[str, Any] = {
            "result": "equal" if equal else "differs",
            "seed": args.seed,
            "tolerance": tolerance,
            "starts": [
                {"size": start.size, "from": begin, "event": start.event._asdict() if start.event else None}
                for start, begin in zip(starts, disturbed.resumed_from)
            ],
            "checks": [check._asdict() for check in checks],
            "causes": causes,
        }
        _show(json.dumps(report))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            _show(f"{check.name:{width}}  {check.verdict.value}: {check.text}")
        for cause in causes:
            _show(f"\nLikely cause: {cause}")
        conclusion = (
            "the stops, resizes and kills changed nothing" if equal else "the result is not that of the undisturbed run"
        )
        _show(f"\n{'EQUAL' if equal else 'DIFFERS'}: {conclusion} (tolerance {tolerance:.2g}).")
    return EQUAL if equal else DIFFERENT


def _plain_steps(args: argparse.Namespace, scratch: Path) -> list[FirstStep]:
    """Run the plain script for its first steps, and return them.

    Raises:
        RehearsalError: there is no such script, or it failed, or it made no optimizer step.
    """
    script = args.against.resolve()
    if not script.is_file():
        raise RehearsalError(f"{args.against}: there is no such script")
    directory = scratch / "plain"
    setup = _prepare(directory, script, args)
    started = time.monotonic()
    run_start(setup, 1, Start(1, None), plain_steps=STEPS)
    _log(f"plain script: its first steps ({time.monotonic() - started:.1f} s)")
    found = read_plain_steps(setup.records(1, 0))
    if not found:
        raise RehearsalError(f"{args.against}: it made no step of a torch optimizer, so there is nothing to compare")
    return found


def _prepare(directory: Path, script: Path, args: argparse.Namespace) -> RunSetup:
    """Make the directories of a run, and return what its starts share."""
    work = Path.cwd() if args.here else directory / "work"
    directory.mkdir()
    work.mkdir(exist_ok=True)
    (directory / "tmp").mkdir()
    return RunSetup(directory, script, args.arguments, work, args.timeout)


def _run(name: str, starts: list[Start], script: Path, args: argparse.Namespace, scratch: Path) -> History:
    setup = _prepare(scratch / name, script, args)
    for number, start in enumerate(starts, start=1):
        started = time.monotonic()
        early = run_start(setup, number, start)
        event = start.event
        if event is None or early:
            outcome = "finished"
        elif event.kill:
            outcome = f"rank {event.rank} killed after step {event.step}"
        else:
            outcome = f"rank {event.rank} asked to stop, stopped after step {event.step}"
        _log(f"{name}, start {number}, world size {start.size}: {outcome} ({time.monotonic() - started:.1f} s)")
        if early and number < len(starts):
            raise RehearsalError(
                f"start {number} finished the training without ending at step {event.step if event else 0}: "
                "the undisturbed run was longer, or the script replaced the shim's signal handler"
            )
    return read_history(setup, starts)


def _sizes(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return int(text)


def _count(text: str) -> int:
    if int(text) < 0:
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return int(text)


def _tolerance(text: str) -> float:
    return _number(text, "0 or more", lambda number: 0 <= number < math.inf)


def _seconds(text: str) -> float:
    return _number(text, "above 0", lambda number: 0 < number < math.inf)


def _number(text: str, requirement: str, is_valid: Callable[[float], bool]) -> float:
    with contextlib.suppress(ValueError):
        if is_valid(number := float(text)):
            return number
    raise argparse.ArgumentTypeError(f"{text} is no number that is {requirement}")


def _exit_by_signal(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _log(text: str) -> None:
    """Write a line of progress to stderr; the report goes to stdout."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
