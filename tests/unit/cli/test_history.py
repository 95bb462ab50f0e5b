import csv
import io
import json

import pytest
from click.testing import CliRunner

from metasched.cli import main
from metasched.configuration.file_names import DATABASE
from metasched.core.model import Placement
from metasched.store import EndCause, JobRecord, Store

AT = 1_750_000_000.0


@pytest.fixture
def history(tmp_path):
    """Calls `metasched history` on a database with one job of two GPU-hours, of a user with a hostile name."""
    with Store.open(tmp_path / DATABASE) as store:
        place = Placement(("n1",), 2, "v100")
        store.add_job(JobRecord(uid="a", slurm_job_id="1", name="x", user="=cmd()\x1b[1m", submitted=AT - 60))
        store.release("a", 1, place, AT)
        store.run_started("a", 1, AT, place)
        store.run_ended("a", 1, AT + 3600, EndCause.FINISHED)
        store.finish_job("a", AT + 3600, "COMPLETED", 0)
    window = ("--since", "2025-06-01", "--until", "2025-07-01")
    return lambda *argv: CliRunner(env={"COLUMNS": "200"}).invoke(
        main, ["history", "--state", str(tmp_path), *window, *argv]
    )


def test_the_table_has_hours_and_waits(history):
    """Users' names reach the terminal with control characters escaped."""
    result = history()
    assert result.exit_code == 0, result.output
    row = result.output.splitlines()[1].split()
    assert row[:5] == [r"=cmd()\x1b[1m", "1", "1", "0", "2.0"]
    assert "RHO" not in result.output


def test_a_gpu_type_has_no_columns_of_ends_and_waits(history):
    """These columns would be empty in every row."""
    head, row = history("--by", "gpu_type").output.splitlines()
    assert head.split() == ["GPU", "TYPE", "JOBS", "GPU", "HOURS", "PREEMPTIONS"]
    assert row.split() == ["v100", "1", "2.0", "0"]


def test_csv_has_every_field_and_no_formula(history):
    """A spreadsheet must not compute a user's name."""
    (row,) = csv.DictReader(io.StringIO(history("--csv").output))
    assert row["user"].startswith("'=cmd()")
    assert (float(row["gpu_hours"]), row["wait_mean"], row["rho_mean"]) == (2.0, "60.0", "")


def test_json_names_the_window(history):
    """The rows come with the grouping and the window in unix seconds."""
    found = json.loads(history("--json", "--by", "gpu_type").output)
    assert (found["by"], found["rows"][0]["group"], found["rows"][0]["gpu_hours"]) == ("gpu_type", "v100", 2.0)
    assert (found["rows"][0]["completed"], found["rows"][0]["failed"]) == (None, None)  # not 0: a job may have several
    assert found["since"] < AT < found["until"]


def test_wrong_windows_and_formats_are_usage_errors(history, tmp_path):
    """A window has a length, and one output one format; a missing database is one message."""
    assert history("--csv", "--json").exit_code == 2
    assert history("--until", "2025-05-01").exit_code == 2
    missing = CliRunner(env={"COLUMNS": "200"}).invoke(main, ["history", "--state", str(tmp_path / "none")])
    assert (missing.exit_code, "Traceback" in missing.output) == (1, False)
