from metasched.cli.history_tables import job_events_table, runs_table
from metasched.cli.tables import NAME_WIDTH
from metasched.core.model import Placement
from metasched.store import EndCause, EventRecord, JobEventRecord, RunRecord

PLACEMENT = Placement(("n1",), 1, "v100")


def test_a_run_without_an_end_has_not_ended_yet():
    """A released run that Slurm has not started and a suspended run are not running."""
    runs = [
        RunRecord("a", 1, PLACEMENT, 0.0, PLACEMENT, 1.0, ended=5.0, cause=EndCause.PREEMPTED),
        RunRecord("a", 2, PLACEMENT, 6.0),
    ]
    (ended,) = (column for column in runs_table(runs, 10.0).columns if column.header == "ENDED")
    assert [str(cell) for cell in ended.cells] == [EndCause.PREEMPTED, "not yet"]


def test_long_names_of_jobs_are_cut():
    """Slurm takes names of a thousand characters, which would leave no width for the event."""
    found = JobEventRecord(EventRecord(1, 0.0, "a", "finished", "done"), "12", "x" * 1000, "ada", None, None)
    assert [len(str(cell)) for column in job_events_table([found]).columns for cell in column.cells][2] == NAME_WIDTH
