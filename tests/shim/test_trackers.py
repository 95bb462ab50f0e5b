"""Trackers over a stop, a kill and two resizes; those of libraries that are not installed are skipped."""

import collections
import importlib.util
import itertools
import json
import os
import signal

import pytest

from tests.shim.conftest import HERE, wait_for, workplaces

pytestmark = pytest.mark.shim

TOTAL = 16
NEEDS = {"lines": (), "tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy"), "wandb": ("wandb",)}
"""The packages that each tracker's test needs. MLflow without SQLAlchemy has no store in a file."""
UID = "0123456789abcdef"


@pytest.fixture
def tracked(tmp_path_factory, server):
    """A workplace of the script that logs to a tracker."""
    with workplaces(tmp_path_factory, script=HERE / "train_tracked.py", server=server) as make:
        yield make()


def lines(place):
    """Each point of the file, and the ids of the runs."""
    found = [json.loads(line) for line in (place.directory / "lines.jsonl").read_text().splitlines()]
    points = [line for line in found if "step" in line]
    outcomes = [line["outcome"] for line in found if "outcome" in line]
    assert outcomes == ["stopped", "finished"]
    names = ("loss", "lr", "evaluation")
    return [(name, line["step"]) for line in points for name in names if name in line], {line["run"] for line in found}


def tensorboard(place):
    """Each point of all event files, also of those that TensorBoard would take for orphans."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # noqa: PLC0415

    files = sorted((place.directory / "board").iterdir())
    assert len(files) == 3
    events = [event for file in files for event in EventFileLoader(str(file)).Load()]
    return [(value.tag, event.step) for event in events for value in event.summary.value], {f"metasched-{UID}"}


def mlflow(place):
    """Each point of the store, and the ids of the runs by their tag."""
    from mlflow.tracking import MlflowClient  # noqa: PLC0415

    client = MlflowClient(f"sqlite:///{place.directory}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("metasched").experiment_id])
    points = []
    for run in runs:
        assert (run.info.status, run.data.params) == ("FINISHED", {"lr": "0.1"})
        for name in run.data.metrics:
            points += [(name, metric.step) for metric in client.get_metric_history(run.info.run_id, name)]
    return points, {run.data.tags["metasched.run"] for run in runs}


def records(data):
    """The records of a .wandb file, which has LevelDB's log format after a header of 7 bytes."""
    place, record = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768  # bytes of the block; a rest that holds no header is padding
        if left < 7:
            place += left
            continue
        length, part = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if part in {1, 4}:  # a whole record, or its last part
            yield record
            record = b""


def wandb(place):
    """Each point in the files of the three offline runs, and their ids."""
    files = wandb_files(place)
    assert len(files) == 3
    return wandb_points(files)


def wandb_files(place):
    """The files of the offline runs, which W&B's own processes write."""
    return sorted(place.directory.glob("wandb/offline-run-*/run-*.wandb"))


def wandb_points(files):
    """Each point in the files, and the ids of their runs."""
    from wandb.proto import wandb_internal_pb2  # noqa: PLC0415

    points, ids = [], set()
    for data in itertools.chain.from_iterable(records(file.read_bytes()) for file in files):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.run.run_id:
            ids.add(record.run.run_id)
        values = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        step = int(values.get("trainer/global_step", -1))
        points += [(name, step) for name in values if name in {"loss", "lr", "evaluation"}]
    return points, ids


@pytest.mark.parametrize("kind", NEEDS)
def test_a_tracker_continues_one_run(kind, tracked):
    """A job that is stopped at 2 ranks, killed at 1 and finished at 2 has one run, with each point once."""
    if missing := [name for name in NEEDS[kind] if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{' and '.join(missing)} not installed")
    variables = {"METASCHED_UID": UID, "WANDB_SILENT": "true"}
    stopped = tracked.launch(2, kind, 5, run=1, **variables)
    with tracked.halted(1, 5):
        for process in stopped.processes:
            os.killpg(process.pid, signal.SIGUSR2)  # also the library's processes, as in a Slurm step
    assert stopped.wait() == [85, 85], stopped.output()
    tracked.write_lease(run=2)
    killed = tracked.launch(1, kind, 10, run=2, **variables)
    tracked.wait_for_step(2, 10)
    if kind == "wandb":  # what its own process has not written yet is lost with it
        wait_for(lambda: ("lr", 10) in wandb_points(wandb_files(tracked))[0], "W&B's process to write step 10")
    killed.kill()
    tracked.write_lease(run=3)
    finished = tracked.launch(2, kind, 0, run=3, **variables)
    assert finished.wait() == [0, 0], finished.output()
    assert tracked.report(3)[0]["step"] < 10  # some steps are trained again

    points, ids = globals()[kind](tracked)
    expected = {(name, step) for step in range(1, TOTAL + 1) for name in ("loss", "lr")}
    expected |= {("evaluation", step) for step in range(4, TOTAL + 1, 4)}
    assert collections.Counter(points) == collections.Counter(expected)
    assert ids == {f"metasched-{UID}"}
