"""Ingest of reports: every line once, and only files of the job's owner."""

import errno
import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.core.batching import BatchControl, Batching, BatchPlan, BatchRegime, GradientNoise
from metasched.core.model import Placement
from metasched.store import JobRecord, Store, ingest, report_ingest, report_rows
from metasched.store.report_ingest import MAX_REFUSED, POLL_BYTES, POLL_LINES, IngestResult
from metasched.store.report_rows import MAX_FILES

UID = "0123456789abcdef"
NOW = 1_732_118_400.0
ME = os.geteuid()
TWO = Placement(("n1",), 2, "v100")


def text(kind, **values):
    return (json.dumps({"v": 1, "t": NOW, "kind": kind, **values}) + "\n").encode()


def steps(step, **changes):
    values = {
        "step": step,
        "steps": 10,
        "samples": 640,
        "seconds": 2.0,
        "loss": 0.5,
        "world_size": 2,
        "global_batch": 64,
        "per_gpu_batch": 32,
        "accumulation": 1,
    }
    return text("steps", **{**values, **changes})


def start(generation, run=1, step=0, **optional):
    values = {"world_size": 2, "samples": step * 64, "resumed": step > 0, "init_seconds": 1.5} | optional
    return text("start", run=run, incarnation=generation, step=step, **values)


class Tree:
    """A job's report files, and a store that reads them."""

    def __init__(self, root):
        self.root = root
        self.reports = root / "reports"
        self.directory = self.reports / UID
        self.directory.mkdir(parents=True)
        self.path = root / "store.sqlite"
        self.store = Store.open(self.path)
        self.store.add_job(JobRecord(uid=UID, slurm_job_id="12", name="train", user="ann", submitted=100.0))
        self.store.release(UID, 1, TWO, 100.0)
        self.store.run_started(UID, 1, 101.0, TWO)

    def file(self, generation=1):
        return self.directory / f"incarnation-{generation}.jsonl"

    def append(self, data, generation=1):
        with self.file(generation).open("ab") as file:
            file.write(data)

    def poll(self, owner=ME):
        return ingest(self.store, self.reports, UID, owner, NOW)

    def refused(self):
        """The lines refused so far, by generation."""
        return {generation: file.refused for generation, file in self.store.report_files(UID).items()}

    def steps(self):
        return [row.step for row in reversed(self.store.recent_throughput(UID, 100_000))]

    def events(self):
        return [event.text for event in self.store.recent_events(100, UID)]


@pytest.fixture
def tree(tmp_path):
    made = Tree(tmp_path)
    yield made
    made.store.close()


def test_a_missing_report_directory_is_no_error(tree):
    """A job whose trainer has not written yet has no event either."""
    tree.directory.rmdir()
    assert tree.poll() == IngestResult()
    assert tree.events() == []


def test_reports_become_rows(tree):
    """Queries find the values of start, steps, checkpoint, stop and end lines."""
    tree.append(
        start(1)
        + text("declare", total_samples=641, global_batch=64)
        + steps(10)
        + steps(20, loss=None, seconds=4.0, t=NOW + 5)
    )
    tree.append(text("checkpoint", step=20, seconds=0.5, bytes=99, cause="stop"))
    tree.append(text("stop", step=20, cause="mailbox", noticed=NOW - 1, checkpointed=True))
    assert tree.poll() == IngestResult(lines=6)
    assert tree.refused() == {1: 0}
    job = tree.store.job(UID)
    assert (job.progress_steps, job.total_steps, job.loss) == (20, 11, 0.5)
    run = job.current
    assert (run.generation, run.ready_at, run.init_seconds) == (1, NOW, 1.5)
    assert (run.stop_noticed, run.checkpointed, run.steps_per_second) == (NOW - 1, True, 2.5)
    assert run.first_step_at == NOW - 2.0
    assert [(row.run, row.step, row.loss) for row in tree.store.recent_throughput(UID)] == [(1, 20, None), (1, 10, 0.5)]
    assert tree.store._rows("SELECT size, cause FROM checkpoints") == [(99, "stop")]
    tree.append(text("end", step=25, samples=1600, loss=0.25))
    tree.poll()
    job = tree.store.job(UID)
    assert (job.progress_steps, job.loss) == (25, 0.25)


def test_only_whole_lines_are_read(tree):
    """A line that is still being written waits for its newline."""
    line = steps(10)
    tree.append(line[:30])
    assert tree.poll().lines == 0
    assert tree.refused() == {}
    tree.append(line[30:])
    assert tree.poll().lines == 1
    assert tree.steps() == [10]


def test_nothing_is_read_twice(tree):
    """A second call, also with a store opened anew, reads only what was appended."""
    tree.append(start(1) + steps(10))
    tree.poll()
    assert tree.poll() == IngestResult()
    tree.store.close()
    tree.store = Store.open(tree.path)
    tree.append(steps(20))
    assert tree.poll().lines == 1
    assert tree.steps() == [10, 20]
    assert tree.store.recent_throughput(UID)[0].run == 1


def test_progress_follows_the_latest_generation(tree):
    """A restart from an earlier checkpoint sets the progress back; a superseded trainer no longer changes it."""
    tree.append(start(1) + steps(50))
    tree.poll()
    tree.append(start(2, step=30), 2)
    tree.poll()
    assert tree.store.job(UID).progress_steps == 30
    tree.append(steps(90, seconds=1.0) + text("stop", step=90, cause="superseded", noticed=NOW, checkpointed=False))
    tree.poll()
    job = tree.store.job(UID)
    assert (job.progress_steps, job.current.generation) == (30, 2)
    assert (job.current.stop_noticed, job.current.steps_per_second) == (None, 5.0)
    assert tree.steps() == [50, 90]


def test_adaptive_progress_follows_the_latest_generation(tree):
    """Each line with progress counts, in steps at the first batch: a restart sets it back, and the end completes it."""
    tree.append(start(1, progress=0.0) + text("declare", total_steps=1000, global_batch=64, adaptive=True))
    tree.append(steps(50, progress=120.5))
    tree.poll()
    assert tree.store.job(UID).progress_steps == 120.5
    tree.append(start(2, step=30, progress=70.25), generation=2)
    tree.poll()
    assert tree.store.job(UID).progress_steps == 70.25
    tree.append(text("stop", step=40, cause="signal", noticed=NOW, checkpointed=True, progress=95.75), generation=2)
    tree.poll()
    assert tree.store.job(UID).progress_steps == 95.75
    tree.append(start(3, step=40, progress=95.75), generation=3)
    tree.append(text("end", step=300, samples=9600, loss=None, progress=1000.5), generation=3)
    tree.poll()
    assert tree.store.job(UID).progress_steps == 1000.5


def test_batch_sizes_and_noise_become_rows(tree):
    """Declared limits, the noise, and progress in steps at the first batch; progress of other lines does not count."""
    limits = {"first_batch": 64, "max_batch": 512, "min_per_gpu": 8, "max_per_gpu": 64, "adaptive": True}
    tree.append(start(1) + text("declare", total_steps=1000, global_batch=64, **limits))
    tree.append(steps(10, progress=10.0, grad_square=2.0, grad_variance=500.0))
    larger = {"global_batch": 256, "per_gpu_batch": 64, "accumulation": 2}
    tree.append(steps(20, progress=31.5, grad_square=-1.0, grad_variance=700.0, plan=3, **larger))
    tree.append(text("stop", step=20, cause="signal", noticed=NOW, checkpointed=True))
    tree.poll()
    tree.append(start(2, step=20), generation=2)
    tree.poll()
    job = tree.store.job(UID)
    assert job.progress_steps == 31.5
    assert job.most_gpus == 2
    assert job.noise == GradientNoise(0.0, 700.0)
    regimes = (BatchRegime(64, 0.0), BatchRegime(256, 10.0))
    assert job.batching == Batching(64, BatchControl.SCHEDULER, BatchPlan(64, 2), 256, 512, 8, 64, regimes, 3)
    latest = tree.store.recent_throughput(UID, 1)[0]
    assert (latest.progress, latest.grad_square, latest.grad_variance, latest.plan) == (31.5, -1.0, 700.0, 3)
    assert [event.kind for event in tree.store.recent_events(10, UID)] == ["reports-noise-clamped"]


def test_reports_of_clamped_noise_are_counted(tree):
    """One event of the job says in how many reports, however many there are."""
    tree.append(start(1) + steps(10, grad_square=-1.0, grad_variance=1.0) + steps(20, grad_square=1.0))
    tree.poll()
    tree.append(steps(30, grad_variance=1e300) + steps(40, grad_square=-2.0))
    tree.poll()
    (event,) = tree.store.recent_events(10, UID)
    assert (event.kind, tree.store.report_files(UID)[1].clamped) == ("reports-noise-clamped", 3)
    assert event.text.endswith("in 3 reports so far")


def test_a_start_line_of_an_unknown_run_is_ignored(tree):
    """Its report file is tied to no run."""
    tree.append(start(1, run=7) + steps(10))
    tree.poll()
    assert tree.refused() == {1: 0}
    assert tree.store.recent_throughput(UID)[0].run is None
    assert tree.store.job(UID).current.generation is None


def test_corrupt_lines_are_counted_and_one_event(tree):
    """The lines around them are accepted."""
    tree.append(b"garbage\n" + steps(10) + b"\xff\n\n" + start(9) + steps(20))
    assert tree.poll() == IngestResult(lines=2)
    assert tree.refused() == {1: 4}
    tree.append(b"{}\n")
    tree.append(b"{}\n", 2)
    tree.poll()
    assert tree.steps() == [10, 20]
    assert tree.refused() == {1: 5, 2: 1}
    assert len(tree.events()) == 1


def test_an_endless_line_is_skipped(tree):
    """A line longer than any report is refused once, in bounded reads, and the next line is accepted."""
    tree.append(b"x" * (POLL_BYTES + 100))
    assert tree.poll().more
    assert tree.refused() == {1: 1}
    tree.poll()
    assert tree.refused() == {1: 1}
    tree.append(b"y" * 100_000 + b"\n" + steps(10))
    assert tree.poll() == IngestResult(lines=1)
    assert tree.refused() == {1: 1}
    assert tree.steps() == [10]


def test_a_call_reads_one_budget(tree):
    """Several calls read all lines once."""
    lines = [steps(number) for number in range(1, 2 * POLL_LINES + 1)]
    tree.append(b"".join(lines[:-100]))
    tree.append(b"".join(lines[-100:]), 2)
    results = [tree.poll() for _ in range(3)]
    assert [(result.lines, result.more) for result in results] == [(POLL_LINES, True), (POLL_LINES, False), (0, False)]
    assert tree.steps() == list(range(1, 2 * POLL_LINES + 1))


def test_the_store_keeps_the_latest_rows_of_a_job(tree, monkeypatch):
    """A trainer that reports for ever cannot fill the disk."""
    monkeypatch.setattr(report_rows, "MAX_THROUGHPUT_ROWS", 3)
    for first in (1, 5):
        tree.append(b"".join(steps(first + offset) for offset in range(4)))
        tree.poll()
    assert tree.steps() == [6, 7, 8]


@pytest.mark.parametrize("torn", [False, True])
def test_lines_of_a_shortened_file_are_not_counted_twice(tree, torn):
    """The content of a truncated or replaced file is skipped, with an event; lines appended later are accepted."""
    tree.append(steps(10) + steps(20) + steps(30))
    tree.poll()
    kept = steps(10) + (steps(20)[:40] if torn else b"")
    tree.file().write_bytes(kept)
    assert tree.poll() == IngestResult()
    tree.append((steps(20)[40:] if torn else b"") + steps(40))
    assert tree.poll() == IngestResult(lines=1)
    assert tree.refused() == {1: 0}
    assert tree.steps() == [10, 20, 30, 40]
    assert [event for event in tree.events() if "shorter" in event] != []


def test_links_pipes_and_directories_are_not_followed(tree, tmp_path):
    """What is no plain file in a report's place is not waited for; an event names the first."""
    secret = tmp_path / "secret"
    secret.write_bytes(steps(10))
    tree.file(1).symlink_to(secret)
    os.mkfifo(tree.file(2))
    with tree.file(2).open("r+b", buffering=0) as pipe:
        pipe.write(steps(20))
        tree.file(3).mkdir()
        tree.append(steps(40), 4)
        assert tree.poll().lines == 1
        tree.poll()
    assert tree.steps() == [40]
    assert [event.split(".")[0] for event in tree.events()] == ["incarnation-1"]


def test_a_file_with_several_hard_links_is_refused(tree, tmp_path):
    """One large file could be linked into the directories of many jobs, and be read for each of them."""
    tree.file(1).write_bytes(start(1) + steps(10))
    (tmp_path / "other").hardlink_to(tree.file(1))
    assert tree.poll().lines == 0
    (event,) = tree.events()
    assert event == "incarnation-1.jsonl: has 2 hard links: copy the file, it is not read through links"
    (tmp_path / "other").unlink()
    assert tree.poll().lines == 2


def test_a_linked_directory_is_not_followed(tree, tmp_path):
    """A link in place of a job's directory is refused."""
    elsewhere = tmp_path / "elsewhere"
    tree.directory.rename(elsewhere)
    tree.directory.symlink_to(elsewhere)
    tree.append(steps(10))
    assert tree.poll() == IngestResult()
    tree.poll()
    assert len(tree.events()) == 1


def test_each_kind_of_failure_is_an_event(tree, monkeypatch):
    """An input/output error, bad lines, and a file and a directory that are links."""

    def stale(_directory):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", stale)
        tree.poll()
    tree.append(b"garbage\n")
    tree.poll()
    tree.file(2).symlink_to(tree.path)
    tree.poll()
    elsewhere = tree.root / "elsewhere"
    tree.directory.rename(elsewhere)
    tree.directory.symlink_to(elsewhere)
    tree.poll()
    kinds = [event.kind for event in reversed(tree.store.recent_events(100, UID))]
    assert kinds == ["reports-unreadable", "reports-lines-refused", "reports-file-refused", "reports-refused"]


def test_a_directory_of_another_user_is_refused(tree):
    """Directory and files must be the job owner's."""
    tree.append(steps(10))
    assert tree.poll(owner=ME + 1) == IngestResult()
    assert "owner" in tree.events()[0]
    assert tree.poll().lines == 1


@pytest.mark.skipif(ME != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tree):
    """It lies in the owner's directory."""
    tree.append(steps(10))
    os.chown(tree.file(), 65534, 65534)
    assert tree.poll() == IngestResult()
    assert "incarnation-1.jsonl" in tree.events()[0]


def test_files_with_other_names_are_ignored(tree):
    """Only the names of the protocol are read."""
    for name in (
        "notes.txt",
        "incarnation-0.jsonl",
        "incarnation-01.jsonl",
        "incarnation-1.jsonl.bak",
        "incarnation-x",
    ):
        (tree.directory / name).write_bytes(steps(10))
    assert tree.poll() == IngestResult()


def test_a_file_of_refused_lines_is_given_up(tree, monkeypatch):
    """A mebibyte of newlines costs a bounded number of lines once, and no read thereafter."""
    tree.append(b"\n" * POLL_BYTES)
    tree.append(steps(10), 2)
    parsed = counted(monkeypatch, report_ingest, "parse_line")
    opened = counted(monkeypatch, os, "open")
    assert [tree.poll().more for _ in range(3)] == [True, False, False]
    assert len(parsed) == MAX_REFUSED + 1
    assert [call[0] for call in opened if str(call[0]).endswith("jsonl")] == [tree.file(1).name, tree.file(2).name]
    assert tree.steps() == [10]
    assert ["no more is read" in event for event in tree.events()] == [True, False]


@pytest.mark.parametrize("how", ["links", "renamed"])
def test_many_report_files_cost_little(tree, monkeypatch, how):
    """Few of them are opened and leave rows, also when they have other names at each poll."""
    tree.append(steps(10))
    tree.poll()
    opened = counted(monkeypatch, os, "open")
    spare = tree.directory / "spare"
    spare.write_bytes(b"\n")
    for poll in range(3):
        for number in range(200):
            name = tree.file(2 + number if how == "links" else 2 + 200 * poll + number)
            if how == "renamed":
                name.hardlink_to(spare)
            elif poll == 0:
                name.symlink_to("nowhere")
        opened.clear()
        tree.poll()
        assert len(opened) <= MAX_FILES + 2  # and the directories
    assert len(tree.store.report_files(UID)) <= MAX_FILES
    assert len(tree.events()) == 1
    for path in tree.directory.glob("incarnation-???*"):
        path.unlink()
    tree.append(steps(20), 900)
    tree.poll()
    assert tree.steps() == [10, 20]


def test_a_crowded_directory_is_not_read(tree, monkeypatch):
    """A directory can have any number of entries; an event has the reason."""
    monkeypatch.setattr(report_ingest, "MAX_ENTRIES", 3)
    for generation in range(1, 5):
        tree.append(steps(10), generation)
    assert tree.poll() == IngestResult()
    assert "more than 3 files" in tree.events()[0]


def counted(monkeypatch, module, name):
    """The list to which each later call of a function adds its arguments."""
    function, calls = getattr(module, name), []
    monkeypatch.setattr(module, name, lambda *a, **k: calls.append(a) or function(*a, **k))
    return calls


class Killed(BaseException):
    """The daemon is killed here."""


CHUNKS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 25), st.sampled_from([1, 2])), min_size=1, max_size=10)


@settings(max_examples=60, deadline=None)
@given(chunks=CHUNKS, corrupt=st.sets(st.integers(1, 12)))
def test_every_line_counts_once_wherever_the_daemon_is_killed(chunks, corrupt):
    """Whole lines count once each, in order, in whatever pieces they are written."""
    lines = {
        generation: [b"garbage\n" if number in corrupt else steps(number) for number in range(1, 13)]
        for generation in (1, 2)
    }
    left = {generation: b"".join(parts) for generation, parts in lines.items()}
    written = {1: b"", 2: b""}
    with tempfile.TemporaryDirectory() as directory:
        tree = Tree(Path(directory))
        try:
            for size, survives, generation in chunks:
                data, left[generation] = left[generation][:size], left[generation][size:]
                written[generation] += data
                tree.append(data, generation)
                _poll_and_die(tree, survives)
            tree.poll()
            rows = list(reversed(tree.store.recent_throughput(UID)))
            for generation in (1, 2):
                whole = written[generation].count(b"\n")
                expected = [number for number in range(1, whole + 1) if number not in corrupt]
                assert [row.step for row in rows if row.generation == generation] == expected
                file = tree.store.report_files(UID).get(generation)
                assert (file.refused if file else 0) == len([number for number in corrupt if number <= whole])
        finally:
            tree.store.close()


def _poll_and_die(tree, survives):
    """Poll with a daemon that dies before its ``survives``-th write, and start another."""
    write = tree.store._write
    left = survives

    def dying(sql, parameters=()):
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return write(sql, parameters)

    tree.store._write = dying
    try:
        tree.poll()
    except Killed:
        tree.store._db.close()  # as a killed process: what is not committed is gone
    else:
        tree.store.close()
    tree.store = Store.open(tree.path)


def test_a_run_adds_up_what_its_trainers_waited(tree):
    """Waits and the largest memory of all lines are totals of the run; what no line tells is not known."""
    tree.append(start(1) + steps(10, data_seconds=0.5, peak_bytes=100) + steps(20, data_seconds=0.25, peak_bytes=90))
    tree.poll()
    checkpoint = text("checkpoint", step=20, seconds=2.0, bytes=10, cause="periodic", stall_seconds=0.125)
    tree.append(steps(30) + checkpoint)
    tree.poll()
    (run,) = tree.store.runs(UID)
    assert (run.step_seconds, run.data_seconds, run.sync_seconds, run.stall_seconds, run.peak_bytes) == (
        *(6.0, 0.75, None, 0.125),
        100,
    )
    latest = tree.store.recent_throughput(UID, 1)[0]
    assert (latest.data_seconds, latest.peak_bytes) == (None, None)
