"""The rehearsal of a user's script: `python -m trainer_shim.rehearse`."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from trainer_shim.rehearse.__main__ import main
from trainer_shim.rehearse.errors import RehearsalError
from trainer_shim.rehearse.plan import plan_disturbance
from trainer_shim.rehearse.state import default_tolerance, differ, flatten, load

ROOT = Path(__file__).parent.parent.parent
DEADLINE = 240.0

SCRIPT = """
import random, sys
import torch
from torch import nn
import trainer_shim

flags = sys.argv[1:]
ctx = trainer_shim.init("/nonexistent/the-real-checkpoints")
points = torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(-1, 1)
dataset = torch.utils.data.TensorDataset(points, points.cos())
norm = [nn.BatchNorm1d(8)] if "batchnorm" in flags else []
model = ctx.wrap(nn.Sequential(nn.Linear(1, 8), *norm, nn.Tanh(), nn.Linear(8, 1)).double())  # without a fixed seed
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: 0.9**count)
global_batch = 4 * ctx.size if "per-gpu" in flags else 8
loader = ctx.loader(dataset, global_batch=global_batch, max_per_gpu=4 if "early" in flags else None)
average = torch.optim.swa_utils.AveragedModel(model)
tracked = {"model": model, "optimizer": optimizer, "average": average}
if "untracked" not in flags:
    tracked["schedule"] = schedule
ctx.track(**tracked)
for epoch in ctx.epochs(3):
    for x, y in loader:
        if "random" in flags:
            x = x * (1 + 0.1 * random.random())
        loss = nn.functional.mse_loss(model(x), y)
        ctx.backward(loss)
        if "early" in flags:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            average.update_parameters(model)
        if ctx.step(optimizer):
            schedule.step()
        if "fail" in flags and ctx.step_count == 2:
            raise RuntimeError("the data are missing")
        if "hang" in flags and ctx.step_count == 2:
            print("hanging", flush=True)
            while True:
                pass
if "twice" in flags:
    assert not list(ctx.epochs(3))
"""


@pytest.fixture
def rehearse(tmp_path):
    """Start a rehearsal in a directory of its own, whose scratch lies in `tmp_path/scratch`; ended at the end."""
    scratch, cwd = tmp_path / "scratch", tmp_path / "cwd"
    scratch.mkdir()
    cwd.mkdir()
    (tmp_path / "train.py").write_text(SCRIPT)
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer_shim.rehearse", *map(str, arguments)],
            cwd=cwd,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def report(process):
    """The exit code and the report of a rehearsal with --json."""
    output, errors = process.communicate(timeout=DEADLINE)
    assert output, errors
    return process.returncode, json.loads(output)


def left_behind(tmp_path):
    """The files in the rehearsal's directories, and the processes that run in its scratch directory."""
    files = [path for part in ("scratch", "cwd") for path in (tmp_path / part).rglob("*")]
    processes = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            processes += [path.parent.name] if str(path.readlink()).startswith(str(tmp_path / "scratch")) else []
    return files, processes


def test_the_example_passes_a_rehearsal(rehearse, tmp_path):
    """The example trains the same through a kill, a stop and a resize, and the rehearsal leaves nothing behind."""
    example = ROOT / "contrib" / "examples" / "train_elastic.py"
    process = rehearse("--sizes", "1,2", "--kills", "1", example, "--epochs", "2", "--samples", "640")
    output, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, output + errors
    assert "samples            equal bitwise: each of the 640 exactly once in every epoch" in output
    assert "\nEQUAL" in output
    assert "killed after step" in errors
    assert left_behind(tmp_path) == ([], [])


def test_the_first_steps_of_the_example(rehearse):
    """With --steps all starts stop at the ordered steps, and the first steps are those of the plain example."""
    examples = ROOT / "contrib" / "examples"
    options = "--json", "--sizes", "1,2", "--kills", "0", "--steps", "4", "--against", examples / "train_plain.py"
    code, found = report(rehearse(*options, examples / "train_elastic.py", "--epochs", "2", "--samples", "640"))
    assert code == 0, found
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["steps"]["text"] == "4"
    assert found["starts"][1]["from"] == found["starts"][0]["event"]["step"]
    assert "loss beside the plain script" in checks


def test_a_schedule_that_is_not_tracked_is_named(rehearse, tmp_path):
    """A script is equal to the last bit at one size; without its schedule in `track`, it is told what goes wrong.

    That it asks for its epochs once more, of which none is left, is no difference.
    """
    options = "--json", "--sizes", "1,1", "--kills", "0", tmp_path / "train.py"
    right, wrong = rehearse(*options, "twice"), rehearse(*options, "untracked")
    code, found = report(right)
    assert code == 0, found
    assert {check["verdict"] for check in found["checks"]} == {"equal bitwise"}
    assert found["causes"] == []

    code, found = report(wrong)
    assert code == 1
    assert found["result"] == "differs"
    stop = found["starts"][0]["event"]["step"]
    rate = next(check for check in found["checks"] if check["name"] == "learning rate")
    # The optimizer's own state brings the rate of the first step after the stop.
    assert (rate["verdict"], rate["step"]) == ("differs", stop + 2)
    assert f"step {stop + 2} (start 2, world size 1, its step 2)" in rate["text"]
    assert len(found["causes"]) == 1
    assert "has a LambdaLR that is not in ctx.track(...)" in found["causes"][0]


def test_batchnorm_is_named_as_a_cause(rehearse, tmp_path):
    """A script with BatchNorm is told of it; what it draws from Python's random while it trains is no difference."""
    script = tmp_path / "train.py"
    code, found = report(rehearse("--json", "--sizes", "1,2", "--kills", "0", script, "batchnorm", "random"))
    assert code == 1
    assert len(found["causes"]) == 1
    assert "BatchNorm (BatchNorm1d '1')" in found["causes"][0]


def test_clipping_and_averaging_within_a_batch_are_named(rehearse, tmp_path):
    """A script that clips gradients and updates averages after each micro-batch differs, and both are named."""
    code, found = report(rehearse("--json", "--sizes", "2,1", "--kills", "0", tmp_path / "train.py", "early"))
    assert code == 1
    clipping, averaging = found["causes"]
    assert "clip_grad_norm_ is called after micro-batches whose gradients are not complete" in clipping
    assert "update_parameters where ctx.step(optimizer) has returned True" in averaging


def test_a_batch_of_each_gpu_is_named(rehearse, tmp_path):
    """A script whose global batch follows the number of GPUs fails at another one, and the error says so."""
    process = rehearse("--sizes", "2,1", "--kills", "0", tmp_path / "train.py", "per-gpu")
    output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 2
    assert "ctx.size" in output


def test_a_script_that_fails_is_shown(rehearse, tmp_path):
    """A script that raises ends the rehearsal with 2 and the tail of its output."""
    process = rehearse(tmp_path / "train.py", "fail")
    output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 2
    assert "ended with exit code 1: start 1, rank 0 of 1" in output
    assert "RuntimeError: the data are missing" in output
    assert left_behind(tmp_path) == ([], [])


def test_a_script_that_hangs_ends_in_time(rehearse, tmp_path):
    """A script that hangs is ended at the timeout, with 2."""
    process = rehearse("--timeout", "4", tmp_path / "train.py", "hang")
    output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 2
    assert "did not end within 4 s" in output
    assert left_behind(tmp_path) == ([], [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_rehearsal_leaves_nothing(rehearse, tmp_path, wait_until, number):
    """Ctrl-C and SIGTERM end all that was started, and remove all files."""
    process = rehearse(tmp_path / "train.py", "hang")
    outputs = (tmp_path / "scratch").glob
    wait_until(lambda: any("hanging" in path.read_text() for path in outputs("*/undisturbed/*.txt")))
    process.send_signal(number)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 128 + number
    assert left_behind(tmp_path) == ([], [])


def test_a_killed_rehearsal_leaves_no_process(rehearse, tmp_path, wait_until):
    """Also the trainers that have just been started end with a driver that dies by SIGKILL."""
    process = rehearse("--sizes", "2", "--kills", "0", tmp_path / "train.py", "hang")
    wait_until(lambda: left_behind(tmp_path)[1])
    process.kill()
    wait_until(lambda: not left_behind(tmp_path)[1])


def test_a_script_of_a_framework_is_refused(rehearse, tmp_path):
    """A script that uses `attach` is refused before it touches its checkpoint directory."""
    directory, script = tmp_path / "checkpoints", tmp_path / "attached.py"
    directory.mkdir()
    script.write_text(f"import trainer_shim\ntrainer_shim.attach({str(directory)!r})\n")
    code, found = report(rehearse("--json", script))
    assert code == 2
    assert "uses attach() (Lightning, Transformers, Accelerate) cannot be rehearsed" in found["error"]
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("option", ["--tolerance=nan", "--tolerance=inf", "--tolerance=-1", "--timeout=0"])
def test_invalid_numbers_are_refused(option, capsys):
    """A tolerance is finite and not negative, and a time limit is above 0."""
    with pytest.raises(SystemExit) as refused:
        main([option, "train.py"])
    assert refused.value.code == 2
    assert option.partition("=")[0] in capsys.readouterr().err


def test_an_error_of_the_driver_is_no_difference(monkeypatch, tmp_path):
    """An error in the driver itself ends with exit code 2."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert main([str(tmp_path / "train.py")]) == 2


@pytest.fixture
def wait_until():
    """Wait until a condition holds."""

    def wait(condition):
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, "timed out"
            time.sleep(0.02)

    return wait


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_leads_through_all_sizes(seed):
    """Every size is used, each event has a step of its own, and one stop comes at the end of an epoch."""
    starts = plan_disturbance([1, 4, 2, 3], 2, [10, 20, 30], seed)
    events = [start.event for start in starts[:-1]]
    assert starts[-1].event is None
    assert [event.step for event in events] == sorted({event.step for event in events})
    assert all(0 < event.step < 30 and event.rank < start.size for start, event in zip(starts, events, strict=False))
    sizes = [after.size for before, after in itertools.pairwise(starts) if not before.event.kill]
    assert [starts[0].size, *sizes] == [1, 4, 2, 3]
    assert any(event.step in (10, 20) and not event.kill for event in events)


def test_too_few_steps_are_refused():
    """A training shorter than the events asked for is an error that says what to change."""
    with pytest.raises(RehearsalError, match="trains 3 steps, too few for 1 stops and 2 kills"):
        plan_disturbance([1, 2], 2, [3], 0)


@pytest.mark.parametrize(
    ("first", "second", "gap"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), 0.0),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), 0.5),
        (torch.tensor([1.0]), torch.tensor([float("nan")]), None),
        (torch.tensor([float("inf"), 1.0]), torch.tensor([float("inf"), 2.0]), 1.0),
        (torch.tensor([float("inf"), 1.0]), torch.tensor([1.0, 1.0]), None),
        (torch.tensor([1]), torch.tensor([2]), None),
        (torch.tensor([1.0]), torch.tensor([1.0, 1.0]), None),
        (3, 4, None),
        (2**60, 2**60 + 1, None),
        (0.5, 0.75, 0.25),
        ("a", "a", 0.0),
        ("a", "b", None),
        (None, 1.0, None),
    ],
)
def test_leaves_are_compared(first, second, gap):
    """Numbers have a gap; what counts, has another shape or no numbers is equal or not."""
    found = differ(first, second)
    assert found.gap == gap
    assert found.within(0.1) == (gap == 0)


def test_a_state_is_flattened():
    """Leaves are named by their path."""
    state = {"state": {0: {"step": 1}}, "groups": [{"lr": 0.1}]}
    assert flatten(state) == {"state.0.step": 1, "groups.0.lr": 0.1}


def test_the_tolerance_follows_the_coarsest_type():
    """By default rounding is judged by the coarsest floating type in the state."""
    assert default_tolerance([torch.zeros(1, dtype=torch.float64)]) == pytest.approx(1.5e-8, rel=0.1)
    assert default_tolerance([torch.zeros(1), torch.zeros(1, dtype=torch.float64), 3]) == pytest.approx(3.5e-4, rel=0.1)


def test_objects_of_unknown_classes_are_opened(tmp_path):
    """A state with a class that only the script knows can be compared by its attributes."""
    lines = ["import torch, sys", "class Mine: pass", "it = Mine()", "it.best = 2.5"]
    lines += ["torch.save({'own': it}, sys.argv[1])"]
    path = tmp_path / "state.pt"
    subprocess.run([sys.executable, "-c", "\n".join(lines), str(path)], check=True, timeout=DEADLINE)
    assert flatten(load(path)["own"]) == {"best": 2.5}
