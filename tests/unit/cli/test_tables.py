"""Tables on terminals of several widths, and elsewhere."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from metasched.cli.status_tables import jobs_table, overview
from metasched.cli.tables import LineTable
from tests.unit.statuses import NOW, job, published, waiting

REASON = "in queue 2 of 2 by the GPU time it has had; needs 4 GPUs of type v100; 2 are free"


def text(shown, width, *, terminal=True):
    """What a console of this width shows."""
    out = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    out.print(shown)
    return out.file.getvalue()


def made():
    """A table whose columns need 50 characters besides the last one."""
    found = LineTable("JOB", "RUNS", "WAITED", "REASON", right=("RUNS",), optional=("RUNS", "WAITED"), last_width=30)
    for number in range(3):
        found.row(number, "3 (renewed 17 rounds)", "in 20 min to 50 min", REASON)
    return found


@pytest.mark.parametrize(
    ("width", "headings", "cut"),
    [
        (140, ["JOB", "RUNS", "WAITED", "REASON"], False),
        (84, ["JOB", "RUNS", "WAITED", "REASON"], True),
        (60, ["JOB", "WAITED", "REASON"], True),
        (58, ["JOB", "WAITED", "REASON"], True),
        (57, ["JOB", "REASON"], True),
    ],
)
def test_a_row_is_a_line_on_a_terminal(width, headings, cut):
    """The most important columns that fit are shown, the others named; the last column is cut."""
    head, *rows = text(made(), width).splitlines()
    assert head.split() == headings
    missing = [heading for heading in ("RUNS", "WAITED") if heading not in headings]
    if missing:
        assert rows.pop() == f"A wider terminal also shows {', '.join(missing)}"
    assert [line.split()[0] for line in rows] == ["0", "1", "2"]
    assert all(("\N{HORIZONTAL ELLIPSIS}" in line) == cut for line in rows)


def test_no_text_is_lost_where_the_output_is_no_terminal():
    """A script gets all columns and whole cells, folded."""
    shown = text(made(), 60, terminal=False)
    assert {"RUNS", "WAITED"} <= set(shown.splitlines()[0].split())
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown


def test_an_error_is_shown_whole():
    """A styled cell of the last column is folded: its user has to mend what it says."""
    found = LineTable("JOB", "REASON", right=(), optional=(), last_width=10)
    found.row(1, Text("there is no key 'max_gpu'; did you mean max_gpus?", style="bold red"))
    assert text(found, 30).split()[-1] == "max_gpus?"


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_the_status_has_a_line_for_each_job(width):
    """At every common width of a terminal, jobs with all columns and long reasons have one line each."""
    jobs = [job(slurm_job_id=str(number), renewals=17, reason=REASON) for number in range(20, 30)]
    jobs += [waiting(slurm_job_id=str(number), place=number, reason=REASON) for number in range(30, 40)]
    lines = text(overview(published(jobs=tuple(jobs)), NOW, 20), width).splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("JOB"))
    assert [line.split()[0] for line in lines[begin + 1 : begin + 21]] == [str(number) for number in range(20, 40)]
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [60, 80, 100])
def test_long_names_and_hosts_leave_ids_sizes_and_reasons(width):
    """Name, user and hosts are cut before the id of any job, its state, its GPUs or the column of reasons."""
    fields = {"name": "n" * 32, "user": "annabelle", "gpus": 8, "min_gpus": 4, "max_gpus": 16}
    nodes = {"gpu-node-01": 4, "gpu-node-07": 4}
    jobs = [job(slurm_job_id="1234567", status="suspended", nodes=nodes, reason=REASON, **fields)]
    lines = text(jobs_table(jobs, NOW), width).splitlines()
    assert lines[0].split() == ["JOB", "NAME", "USER", "STATE", "GPUS", "WHERE", "REASON"]
    assert lines[1].startswith("1234567  nnn")
    assert "  suspended  8 of 4-16  gpu" in lines[1]
    assert len(lines[1]) <= width
    assert lines[2].startswith("A wider terminal also shows ")


@pytest.mark.parametrize(
    ("width", "row"),
    [
        (43, "12345678  a-name-of-23-characters  reason"),
        (30, "12345678  a-name-of\N{HORIZONTAL ELLIPSIS}  reason"),
        (28, "12345678  a-name-\N{HORIZONTAL ELLIPSIS}  reason"),
        (25, "12345678  a-name-\N{HORIZONTAL ELLIPSIS}  re\N{HORIZONTAL ELLIPSIS}"),
        (22, "12345678  a-na\N{HORIZONTAL ELLIPSIS}  re\N{HORIZONTAL ELLIPSIS}"),
    ],
)
def test_a_name_shrinks_first_then_the_last_column(width, row):
    """The last column keeps its least width until a name has eight characters, and then that of its heading."""
    found = LineTable("JOB", "NAME", "WHY", right=(), optional=(), shrinkable=("NAME",), last_width=6)
    found.row("12345678", "a-name-of-23-characters", "reason")
    assert text(found, width).splitlines()[1].rstrip() == row
