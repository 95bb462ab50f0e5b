"""Pollux's workloads and measurements (Qiao et al., OSDI 2021; the ``simulator`` folder of its artifact).

A workload is a CSV of jobs: name, time, application, num_replicas, batch_size. Each application has a folder with
``placements.csv``, ``scalability.csv`` and one ``validation-BATCH.csv`` for each batch size that it was trained at.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path

from metasched.simulator.records import Submission, Workload, trace_job
from metasched.simulator.traces.errors import TraceError
from metasched.simulator.traces.rows import Row, named_rows
from metasched.throughput.adaptive_profile import AdaptiveProfileTraining
from metasched.throughput.goodput_profile import EpochRecords, GoodputProfile, ProfileTraining, StepTime, StepTimes

WORKLOAD = ("name", "time", "application", "num_replicas", "batch_size")
PLACEMENTS = ("placement", "local_bsz", "step_time", "sync_time")
SCALABILITY = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
VALIDATION = ("progress", "iteration", "grad_sqr", "grad_var")

EPOCHS = {"bert": 2, "cifar10": 100, "deepspeech2": 80, "imagenet": 90, "ncf": 10, "yolov3": 50}
"""Epochs until the validation metric of the paper's table 1; for other applications the files decide."""

MOST_LOCAL = {"yolov3": 8}
"""The largest local batch size of an application, where larger ones were measured than fit into a GPU."""


def read_profiles(folder: Path, *, gpu_type: str = "t4") -> dict[str, GoodputProfile]:
    """The applications of a folder, by name.

    Raises:
        TraceError: the folder has no application, or a file cannot be used as it is.
    """
    found = {path.parent.name: read_profile(path.parent, gpu_type) for path in sorted(folder.glob("*/placements.csv"))}
    if not found:
        raise TraceError(folder, None, None, "holds no application", "give a folder of folders with placements.csv")
    return found


def read_profile(folder: Path, gpu_type: str = "t4") -> GoodputProfile:
    """The application of one folder.

    Raises:
        TraceError: a file cannot be used as it is.
    """
    placed: dict[tuple[int, ...], dict[int, StepTime]] = {}
    for row in named_rows(folder / "placements.csv", PLACEMENTS):
        digits = row.text("placement")
        if not digits.isdecimal() or "0" in digits:
            raise row.refusal("placement", f"{digits!r} is not a placement", "give the GPUs of each node, a digit each")
        placed.setdefault(tuple(map(int, digits)), {})[row.whole("local_bsz", least=1)] = _step_time(row)
    scaled = {
        (row.whole("num_nodes", least=1), row.whole("num_replicas", least=1), row.whole("local_bsz", least=1)): (
            _step_time(row)
        )
        for row in named_rows(folder / "scalability.csv", SCALABILITY)
    }
    trained = {_batch(path): _epochs(path) for path in sorted(folder.glob("validation-*.csv"))}
    least = min((len(one.progress) for one in trained.values()), default=0)
    if not placed or not least:
        raise TraceError(folder, None, None, "has no placements, or no epochs", "give measurements of both")
    return GoodputProfile(
        folder.name,
        {spread: StepTimes(*zip(*sorted(times.items()), strict=True)) for spread, times in placed.items()},
        scaled,
        trained,
        epochs=min(EPOCHS.get(folder.name, least), least),
        gpu_type=gpu_type,
        most_local=MOST_LOCAL.get(folder.name),
    )


def read_pollux(
    path: Path,
    profiles: Mapping[str, GoodputProfile],
    *,
    most_gpus: int | None = None,
    adaptive: bool = False,
) -> Workload:
    """The jobs of a workload, each elastic from one GPU to the most that its batch size can be divided among.

    Uids are line numbers.

    Args:
        path: of the workload.
        profiles: the applications by name.
        most_gpus: the most GPUs that a job may ask for; None for no limit.
        adaptive: whether policies may change the batch size of the jobs, which then begin at the first one.

    Raises:
        TraceError: the workload cannot be used as it is.
    """
    rows = list(named_rows(path, WORKLOAD))
    digits = len(str(rows[-1].line)) if rows else 1
    before = 0.0
    submissions = []
    for row in rows:
        submitted = row.number("time")
        if submitted < before:
            raise row.refusal("time", f"{submitted:g} is before the line above", "sort by time")
        before = submitted
        profile = profiles[row.one_of("application", profiles)]
        batch = row.whole("batch_size", least=profile.first_batch, most=profile.most_batch)
        gpus = row.gpus("num_replicas", most_gpus)
        if gpus * profile.least_local > batch:
            fix = f"give {batch // profile.least_local} or fewer"
            raise row.refusal("num_replicas", f"a batch of {batch} is too small for {gpus} GPUs", fix)
        submissions.append(
            submission(
                f"{row.line:0{digits}}", row.text("name"), submitted, profile, gpus=gpus, batch=batch, adaptive=adaptive
            )
        )
    return Workload(path.name, tuple(submissions))


def submission(
    uid: str, name: str, submitted: float, profile: GoodputProfile, *, gpus: int, batch: int, adaptive: bool = False
) -> Submission:
    """A job that trains an application and asks for ``gpus``.

    Args:
        uid: the job's uid.
        name: its name.
        submitted: its arrival, in seconds.
        profile: the application.
        gpus: the GPUs that it asks for.
        batch: the batch size that its user chose.
        adaptive: whether policies may change the batch size; the job then begins at the application's first one.
    """
    most = max(gpus, (profile.most_batch if adaptive else batch) // profile.least_local)
    job = trace_job(uid, name, submitted, gpus, min_gpus=1, max_gpus=most)
    job = job.evolve(gpu_types=(profile.gpu_type,), adaptive_batch=adaptive)
    if adaptive:
        return Submission(job, AdaptiveProfileTraining(profile, profile.first_batch))
    return Submission(job, ProfileTraining(profile, batch))


def _step_time(row: Row) -> StepTime:
    step, sync = row.number("step_time"), row.number("sync_time")
    if step <= 0 or sync >= step:
        raise row.refusal("sync_time", f"{sync:g} of a step of {step:g} s", "give less than the whole step")
    return StepTime(step, sync)


def _batch(path: Path) -> int:
    size = path.stem.partition("-")[2]
    if not re.fullmatch("[1-9][0-9]{0,8}", size):
        raise TraceError(path, None, None, "has no batch size in its name", "name it validation-BATCH.csv")
    return int(size)


def _epochs(path: Path) -> EpochRecords:
    rows = list(named_rows(path, VALIDATION))
    for above, row in itertools.pairwise(rows):
        if row.number("progress") <= above.number("progress"):
            raise row.refusal("progress", "is not above the line above", "sort by epoch")
    columns = ([row.number(column) for row in rows] for column in VALIDATION)
    return EpochRecords(*(tuple(column) for column in columns))
