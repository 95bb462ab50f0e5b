"""The text of scontrol 22.05: read as the JSON of squeue, and never fooled by a user's text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core.model import Hold
from metasched.slurm import job_text
from metasched.slurm.job_text import fields, lasting, records
from metasched.slurm.json_parser import MIB, parse_job_record, parse_jobs
from tests.unit.slurm.job_texts import FIELDS, text_of
from tests.unit.slurm.test_json_parser import PENDING_22, RUNNING_22

RUNNING = {
    "job_id": 21, "job_state": "RUNNING", "reason": "None", "priority": 4294901755, "eligible_time": 1795191940,
    "start_time": 1795191944, "end_time": 1826727944, "time_limit": "01:00:00", "nodes": "2",
    "tres_lines": ("TresPerJob=gres:gpu:5",),
    "allocation": (
        "Nodes=n3 CPU_IDs=0-1 Mem=2000 GRES=gpu:v100:4(IDX:0-3)",
        "Nodes=n4 CPU_IDs=2 Mem=1000 GRES=gpu:v100:1(IDX:0)",
    ),
}  # fmt: skip


def only_text(record):
    """The text of the only record that scontrol prints."""
    output = text_of(record).encode()
    (found,) = records(output)
    return found.text(output)


def job(**changes):
    """The job of a record."""
    (found,) = parse_job_record(fields(only_text(changes)))
    return found


@pytest.mark.parametrize(("text", "record"), [({}, PENDING_22), (RUNNING, RUNNING_22)])
def test_a_job_is_the_one_of_the_json(text, record):
    """All fields are the same."""
    assert job(**text) == parse_jobs(json.dumps({"jobs": [record]})).records[0]


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"nodes": "2-4"}, "nodes_max", 4),
        ({"nodes": "1K-2K"}, "nodes_max", 2048),
        ({"tres": "(null)", "nodes": "3-3"}, "nodes_requested", 3),
        ({"cpus": "1K"}, "cpus", 1024),
        ({"cpus": "4-8"}, "cpus", 4),
        ({"tasks": "N/A"}, "tasks", 1),
        ({"tasks_per_node": "*"}, "nodes_requested", 2),
        ({"memory": "MinMemoryNode=2G"}, "memory_per_node", 2048 * MIB),
        ({"memory": "MinMemoryNode=0"}, "memory_per_node", 0),
        ({"time_limit": "2-03:04:00"}, "time_limit", 2 * 86400 + 3 * 3600 + 240.0),
        ({"time_limit": "Partition_Limit"}, "time_limit", None),
        ({"shared": "NO"}, "exclusive", True),
        ({"shared": "USER"}, "exclusive", False),
        ({"job_state": "FAILED", "exit_code": "3:0"}, "exit_code", 3),
        ({"job_state": "FAILED", "exit_code": "0:9"}, "exit_code", 137),
        ({"resv_name": "r1"}, "reservation", "r1"),
        ({"het_job_id": 22}, "het", True),
        ({"dependency": "afterok:5(unfulfilled)"}, "dependency", "afterok:5(unfulfilled)"),
        ({"batch_flag": 0}, "batch", False),
        ({"comment": ""}, "comment", ""),
        ({"comment": " a=1  b "}, "comment", " a=1  b "),
        ({"name": "my job UserId=root(0)"}, "name", "my job UserId=root(0)"),
        ({"admin_comment": "metasched:0 words "}, "admin_comment", "metasched:0 words "),
        ({"priority": 5, "reason": "ReqNodeNotAvail,_UnavailableNodes:n4"}, "reason",
         "ReqNodeNotAvail, UnavailableNodes:n4"),
        ({"mail_user": "ann"}, "user", "ann"),
        ({"tres_lines": ("CpusPerTres=gres:gpu:2", "MemPerTres=gres:gpu:100")}, "memory_per_gpu", 100 * MIB),
    ],
)  # fmt: skip
def test_a_field_is_read_in_each_of_its_forms(changes, name, value):
    """Numbers with units, ranges, texts with blanks."""
    assert getattr(job(**changes), name) == value


@pytest.mark.parametrize(
    ("task", "slurm_job_id"), [({"array_task_id": 4}, "20_4"), ({"array_task_string": "4"}, "20_4")]
)
def test_a_task_of_an_array_is_read(task, slurm_job_id):
    """Slurm prints the last waiting task as one with a record of its own."""
    found = job(array_job_id=20, **task)
    assert (found.slurm_job_id, found.array_job_id, found.array_task_id) == (slurm_job_id, 20, 4)


def test_nodes_with_the_same_allocation_share_a_line():
    """Each has the line's GPUs, CPUs and memory."""
    line = "Nodes=n[1-2] CPU_IDs=0,2-3 Mem=500 GRES=gpu:2(IDX:0-1)"
    found = job(**RUNNING | {"allocation": (line,), "cpus": "6"})
    assert found.allocated == {"n1": 2, "n2": 2}
    assert found.allocated_cpus == {"n1": 3, "n2": 3}
    assert found.allocated_memory == {"n1": 500 * MIB, "n2": 500 * MIB}


def test_the_kind_of_a_hold_may_be_hidden():
    """After a requeue Slurm prints a description, from which nobody can tell who holds the job."""
    assert job(reason="JobHeldUser").hold is Hold.USER
    with pytest.raises(ValueError, match="hides who holds"):
        fields(only_text({"reason": "job_requeued_in_held_state"}))


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": "many"},
        {"time_limit": "soon"},
        {"exit_code": "0"},
        {"priority": "high"},
        {"memory": "MinMemoryNode=1.5G"},
        {"start_time": "2026-11-27T13:45:23"},
        {"tres_lines": ("CronJob=Yes",)},
    ],
)
def test_another_form_is_refused(changes):
    """A form that is not known is never guessed."""
    with pytest.raises(ValueError, match=r".+"):
        fields(only_text(changes))


@given(st.integers(0, len(job_text._LINES)))
def test_a_part_of_a_record_is_refused(kept):
    """All lines that each record has must be there."""
    whole = only_text({})
    text = "\n".join(whole.split("\n")[:kept])
    if text != whole and not text.endswith("Power="):
        with pytest.raises(ValueError, match=r".+"):
            fields(text)


FORGED = [
    "NumNodes=7", "UserId=root(0) GroupId=root(0) MCS_label=N/A", "Priority=5 Nice=0 Account=lab QOS=high",
    "AdminComment=metasched:0123456789abcdef ", "Comment=metasched weight=9 ", "Power=", "TresPerJob=gres:gpu:8",
    "TresPerNode=gres:gpu:8", "Reservation=r1", "StdErr=x", "Nodes=n1 CPU_IDs=0 Mem=1 GRES=gpu:4", "Features=a",
    "MailUser=x MailType=y", "x",
]  # fmt: skip
LINE = st.sampled_from(FORGED)
PLACES = ("name", "comment", "command", "directory", "mail_user")


@given(st.sampled_from(PLACES), st.lists(LINE, min_size=1, max_size=4), st.booleans())
def test_a_line_break_forges_no_field_of_slurms(place, forged, stamped):
    """A text with lines like Slurm's is refused, or gives the user's own comments and an unconfirmed AdminComment."""
    real = {"admin_comment": "metasched:fedcba9876543210"} if stamped else {}
    changes = real | {place: "x\n   " + "\n   ".join(forged)}
    try:
        found = job(**changes)
    except ValueError:
        return
    expected = job(**real)
    own = {"name", "comment"} if stamped else {"name", "comment", "admin_comment"}
    for name in set(type(found).__dataclass_fields__) - own:
        assert getattr(found, name) == getattr(expected, name), name
    assert place in ("directory", "mail_user", "comment", "name")


@pytest.mark.parametrize("place", [*PLACES, "network", "login"])
def test_words_like_slurms_within_a_line_are_no_fields(place):
    """Whatever stands before them in the line."""
    forged = (
        "x UserId=root(0) ArrayJobId=4 ArrayTaskId=2 HetJobId=3 Account=vips QOS=high Priority=9 NumNodes=7 JobId=4 "
    )
    forged += "TRES=node=7 TresPerJob=gres:gpu:8 Partition=secret JobState=FAILED Reason=None Features=a ExitCode=1:0"
    found, expected = job(**{place: forged}), job()
    for name in set(type(found).__dataclass_fields__) - {"name", "comment"}:
        assert getattr(found, name) == getattr(expected, name), name


@pytest.mark.parametrize(
    "name",
    [
        "x\n   RunTime= TimeLimit=\n   AccrueTime=\n   StartTime=\n   SuspendTime=",
        "x\n   RunTime=1 TimeLimit=2\n   AccrueTime=3\n   StartTime=4 EndTime=5 Deadline=N/A",
        "x\n   JobState=PENDING Reason=None\n   StartTime=4 EndTime=5 ",
    ],
)
def test_a_name_hides_no_change(name):
    """What changes by itself is left out wherever it stands, and nothing else."""
    before = only_text({"name": name})
    for change in ({"priority": 7}, {"job_state": "CANCELLED"}, {"user_name": "bob"}, {"time_limit": "00:05:00"}):
        assert lasting(only_text({"name": name} | change)) != lasting(before)


def test_a_forged_record_has_the_id_of_its_text():
    """Whoever asks for a record compares ids, and takes none that stands twice."""
    forged = text_of({"job_id": 7, "user_name": "root"}).strip()
    inside = text_of({"comment": f"x\n   StdErr=\n   StdIn=\n   StdOut=\n   Power=\n\n{forged}"})
    assert [one.job_id for one in records((inside + text_of({"job_id": 7})).encode())] == ["22", "7", "7"]


def test_what_lasts_is_what_is_read():
    """The run time, the last evaluation and a waiting job's forecast change by themselves; the rest counts."""
    later = {"run_time": "00:01:00", "evaluated": 1795191999, "start_time": 1795191999}
    assert lasting(only_text({})) == lasting(only_text(later))
    running = only_text(RUNNING)
    for name in sorted(set(FIELDS) - {"run_time", "evaluated"}):
        value = FIELDS[name] if name in RUNNING else {"allocation": ("Nodes=n1",), "tres_lines": ()}.get(name, "9")
        other = only_text(RUNNING | {name: value})
        assert (lasting(other) != lasting(running)) == (other != running), name


def test_an_output_without_jobs_has_no_record_of_a_job():
    """The words that Slurm prints then are no id."""
    assert [one.job_id.isdecimal() for one in records(b"No jobs in the system\n")] == [False]
