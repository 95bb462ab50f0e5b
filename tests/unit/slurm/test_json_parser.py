"""Records from Slurm's JSON, of the releases whose forms differ."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.core.model import Hold
from metasched.slurm import json_releases
from metasched.slurm.client import JobState
from metasched.slurm.errors import MalformedOutputError
from metasched.slurm.json_parser import (
    MOST_SCANS,
    SEARCHED_BYTES,
    JobsParser,
    NodesParser,
    parse_jobs,
    parse_nodes,
    parse_reservations,
)

MIB = 2**20

CORE = "allocated"
RUNNING_22 = {
    "job_id": 21, "array_job_id": 0, "array_task_id": None, "array_task_string": "", "name": "train",
    "user_name": "ann",
    "user_id": 1000, "account": "lab", "partition": "main", "qos": "normal", "comment": "metasched",
    "admin_comment": "",
    "job_state": "RUNNING", "state_reason": "None", "state_description": "", "priority": 4294901755,
    "submit_time": 1795191940, "eligible_time": 1795191940, "start_time": 1795191944, "end_time": 1826727944,
    "time_limit": 60, "node_count": 2, "tasks": 2, "tasks_per_node": 0, "cpus": 6, "max_nodes": 0,
    "tres_per_node": "", "tres_per_job": "gres:gpu:5", "tres_per_task": "", "tres_per_socket": "", "cpus_per_tres": "",
    "memory_per_tres": "", "memory_per_node": None, "memory_per_cpu": 500, "features": "v100",
    "required_nodes": "n[3-4]",
    "shared": None, "restart_cnt": 1, "requeue": True, "dependency": "", "exit_code": 0, "het_job_id": 0,
    "batch_flag": True,
    "tres_req_str": "cpu=6,mem=3000M,node=2,billing=6",
    "gres_detail": ["gpu:v100:4(IDX:0-3)", "gpu:v100:1(IDX:0)"],
    "job_resources": {
        "nodes": "n[3-4]",
        "allocated_nodes": [
            {"nodename": "n3", "memory_allocated": 2000, "sockets": {"0": {"cores": {"0": CORE, "1": CORE}}}},
            {"nodename": "n4", "memory_allocated": 1000, "sockets": {"0": {"cores": {"0": CORE}}}},
        ],
    },
}  # fmt: skip
PENDING_22 = RUNNING_22 | {
    "job_id": 22, "job_state": "PENDING", "state_reason": "JobHeldAdmin", "priority": 0, "start_time": 0, "end_time": 0,
    "tres_per_job": "", "tres_per_node": "gres:gpu:v100:2", "gres_detail": [], "time_limit": None, "eligible_time": 0,
    "job_resources": {},
}  # fmt: skip
RUNNING_24 = RUNNING_22 | {
    "job_state": ["RUNNING", "CONFIGURING"],
    "array_job_id": {"set": True, "infinite": False, "number": 20},
    "array_task_id": {"set": True, "infinite": False, "number": 4},
    "priority": {"set": True, "infinite": False, "number": 100},
    "submit_time": {"set": True, "infinite": False, "number": 1795191940},
    "time_limit": {"set": False, "infinite": True, "number": 0},
    "cpus": {"set": True, "infinite": False, "number": 6},
    "memory_per_cpu": {"set": True, "infinite": False, "number": 500},
    "max_nodes": {"set": True, "infinite": False, "number": 0},
    "shared": [],
    "exit_code": {"status": ["SUCCESS"], "return_code": {"set": True, "infinite": False, "number": 0}},
    "tres_per_job": "gres/gpu:5",
    "job_resources": {
        "nodes": {
            "count": 2,
            "list": "n[3-4]",
            "allocation": [
                {"index": 0, "name": "n3", "cpus": {"count": 4, "used": 0}, "memory": {"used": 0, "allocated": 2000}},
                {"index": 1, "name": "n4", "cpus": {"count": 2, "used": 0}, "memory": {"used": 0, "allocated": 1000}},
            ],
        }
    },
}
NODE_22 = {
    "reason": "spare", "name": "n1", "state": "mixed", "state_flags": [], "gres": "gpu:v100:4",
    "gres_used": "gpu:v100:2(IDX:0-1)", "cpus": 16,
    "real_memory": 64000, "alloc_cpus": 3, "alloc_memory": 1500, "active_features": "v100,fast",
    "partitions": ["main", "long"],
}  # fmt: skip
NODE_24 = NODE_22 | {"state": ["MIXED", "PLANNED"], "active_features": ["v100", "fast"]}


def read(*records):
    return parse_jobs(json.dumps({"jobs": records}))


def job(record, **changes):
    parsed = read(record | changes)
    assert not parsed.errors
    (found,) = parsed.records
    return found


@pytest.mark.parametrize(("record", "slurm_job_id"), [(RUNNING_22, "21"), (RUNNING_24, "20_4")])
def test_a_running_job_is_read_in_the_form_of_each_release(record, slurm_job_id):
    """Allocation, request and user are the same."""
    found = job(record)
    assert (found.slurm_job_id, found.job_id, found.state, found.user, found.account) == (
        slurm_job_id, 21, JobState.RUNNING, "ann", "lab",
    )  # fmt: skip
    assert (found.allocated, found.allocated_gpu_type) == ({"n3": 4, "n4": 1}, "v100")
    assert found.allocated_cpus == {"n3": 4, "n4": 2}
    assert found.allocated_memory == {"n3": 2000 * MIB, "n4": 1000 * MIB}
    assert (found.gpus_total, found.gpus_per_node, found.gpu_type, found.cpus) == (5, None, None, 6)
    assert (found.submitted, found.started, found.ended, found.restarts) == (1795191940.0, 1795191944.0, None, 1)
    assert (found.required_nodes, found.features, found.nodes_max) == (("n3", "n4"), {"v100"}, None)
    assert (found.hold, found.exit_code, found.exclusive, found.batch) == (Hold.NONE, None, False, True)


def test_a_held_job_is_read():
    """A job that never ran has no fields of a run."""
    found = job(PENDING_22)
    assert (found.state, found.hold, found.reason) == (JobState.PENDING, Hold.ADMIN, "JobHeldAdmin")
    assert (found.gpus_per_node, found.gpu_type, found.time_limit) == (2, "v100", None)
    assert (found.allocated, found.started, found.eligible, found.exit_code) == ({}, None, None, None)


@pytest.mark.parametrize(
    ("changes", "hold"),
    [
        ({"state_reason": "JobHeldUser"}, Hold.USER),
        ({"state_reason": "JobHeldAdmin"}, Hold.ADMIN),
        ({"state_reason": "Dependency"}, Hold.USER),
        ({"state_reason": "JobHeldUser", "job_state": "SPECIAL_EXIT"}, Hold.USER),
        ({"state_reason": "JobHeldAdmin", "job_state": ["PENDING", "REQUEUED"]}, Hold.ADMIN),
        ({"state_reason": "BeginTime", "priority": 5}, Hold.NONE),
        ({"state_reason": "None", "job_state": "SUSPENDED", "job_resources": {"allocated_nodes": []}}, Hold.NONE),
    ],
)
def test_priority_zero_of_a_pending_job_is_a_hold(changes, hold):
    """The reason names the kind of hold; a suspended job has priority 0 as well, and no hold."""
    assert job(PENDING_22, **changes).hold is hold


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("PENDING", JobState.PENDING),
        ("SPECIAL_EXIT", JobState.PENDING),
        (["PENDING", "REQUEUE_HOLD"], JobState.PENDING),
        (["RUNNING", "COMPLETING"], JobState.COMPLETING),
        (["PENDING", "COMPLETING", "REQUEUED"], JobState.COMPLETING),
        ("COMPLETING", JobState.COMPLETING),
        ("CONFIGURING", JobState.RUNNING),
        (["CANCELLED", "COMPLETING"], JobState.COMPLETING),
        ("NODE_FAIL", JobState.FAILED),
        ("OUT_OF_MEMORY", JobState.FAILED),
        ("TIMEOUT", JobState.TIMEOUT),
        ("PREEMPTED", JobState.CANCELLED),
    ],
)
def test_slurms_states_are_merged(words, state):
    """A job that still holds resources is COMPLETING, whatever follows; a job that will run again is PENDING."""
    assert job(RUNNING_22, job_state=words).state is state


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (768, 3),
        (15, 143),
        (0, 0),
        ({"status": ["ERROR"], "return_code": {"set": True, "infinite": False, "number": 3}, "signal": {}}, 3),
        (
            {
                "status": ["SIGNALED"],
                "return_code": {"set": False, "infinite": False, "number": 0},
                "signal": {"id": {"set": True, "infinite": False, "number": 15}, "name": "SIGTERM"},
            },
            143,
        ),
    ],
)
def test_exit_codes_are_as_a_shell_reports_them(value, code):
    """A signal counts 128 more."""
    assert job(RUNNING_22, job_state="FAILED", exit_code=value).exit_code == code


def test_a_completing_job_holds_the_gpus_of_its_request():
    """Slurm no longer reports its GPUs, though they are not free."""
    ending = {"job_state": "COMPLETING", "gres_detail": []}
    assert job(RUNNING_22, **ending, tres_per_job="", tres_per_node="gres:gpu:v100:2").allocated == {"n3": 2, "n4": 2}
    assert job(RUNNING_22, **ending, tres_per_job="gres:gpu:4").allocated == {"n3": 2, "n4": 2}
    assert job(RUNNING_22, **ending, tres_per_job="", tres_per_task="gres:gpu:3").allocated == {"n3": 3, "n4": 3}
    assert job(RUNNING_22, **ending, tres_per_job="").allocated == {"n3": 0, "n4": 0}


@pytest.mark.parametrize(
    ("details", "indices"),
    [
        (["shard:1(IDX:1)", "shard:1(IDX:0)"], {"n3": (1,), "n4": (0,)}),
        (["shard:v100:1(0/2,1/2)", "shard:v100:1(1/2,0/2)"], {"n3": (1,), "n4": (0,)}),  # by the source of 25.05
    ],
)
def test_a_job_of_shards_has_a_part_of_one_gpu_on_each_node(details, indices):
    """Slurm reports the GPU's index, and no type where the request names none."""
    shared = {"gres_detail": details, "tres_per_job": "", "tres_per_node": "gres:shard:1"}
    found = job(RUNNING_22, **shared)
    assert (found.allocated, found.shards, found.shards_per_node) == ({"n3": 1, "n4": 1}, {"n3": 1, "n4": 1}, 1)
    assert (found.gpu_indices, found.allocated_gpu_type, found.gpus_per_node) == (indices, None, None)
    ending = job(RUNNING_22, **shared | {"gres_detail": []}, job_state="COMPLETING")
    assert (ending.allocated, ending.shards, ending.gpu_indices) == ({"n3": 1, "n4": 1}, {"n3": 1, "n4": 1}, {})


@pytest.mark.parametrize("detail", ["shard:0(IDX:1)", "shard:v100:0(0/2,1/2)"])
def test_a_job_of_shards_that_are_not_consumed_holds_a_gpu(detail):
    """Slurm counts 0 shards where they are configured as no_consume; the job runs on the GPU all the same."""
    found = job(RUNNING_22, gres_detail=[detail, detail], tres_per_job="", tres_per_node="gres:shard:1")
    assert (found.allocated, found.shards) == ({"n3": 1, "n4": 1}, {"n3": 0, "n4": 0})
    assert found.gpu_indices == {"n3": (1,), "n4": (1,)}


def test_untyped_gpus_have_the_type_of_untyped_nodes():
    """The type of an untyped GPU is "" in jobs as in nodes; without GPUs it is None."""
    untyped = {"gres_detail": ["gpu:2(IDX:0-1)", "gpu:2(IDX:0-1)"], "tres_per_job": "gres:gpu:4"}
    assert job(RUNNING_22, **untyped).allocated_gpu_type == ""
    assert job(RUNNING_22, gres_detail=[], tres_per_job="").allocated_gpu_type is None


def test_unsplit_array_tasks_become_jobs():
    """All tasks have their master's id."""
    parsed = read(PENDING_22 | {"array_job_id": 22, "array_task_string": "1-5:2,9%1"})
    assert [found.slurm_job_id for found in parsed.records] == ["22_1", "22_3", "22_5", "22_9"]
    assert {(found.job_id, found.array_job_id) for found in parsed.records} == {(22, 22)}
    assert [found.array_task_id for found in parsed.records] == [1, 3, 5, 9]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"job_id": None}, "job_id"),
        ({"job_id": "x"}, "job_id"),
        ({"job_state": "DANCING"}, "job_state"),
        ({"job_state": None}, "job_state"),
        ({"submit_time": None}, "submit_time"),
        ({"tres_per_node": "gres:gpu:v100:two"}, "tres_per_node"),
        ({"tres_per_node": 7}, "tres_per_node"),
        ({"required_nodes": "n[1-"}, "required_nodes"),
        ({"array_task_string": "1,...", "array_job_id": 21}, "array_task_string"),
        ({"gres_detail": ["gpu:v100:2"]}, "gres_detail"),
        ({"gres_detail": ["gpu:what:2:3", ""]}, "gres_detail"),
        ({"job_resources": None}, "job_resources"),
        ({"job_resources": []}, "job_resources"),
        ({"job_resources": {"allocated_nodes": [{"nodename": "n3"}]}}, "job_resources"),
        ({"cpus": True}, "cpus"),
        ({"name": 5}, "name"),
        ({"requeue": "yes"}, "requeue"),
    ],
)
def test_a_wrong_record_is_named_and_hides_no_other(changes, field):
    """The error names the job and the field."""
    parsed = read(PENDING_22, RUNNING_22 | changes)
    assert [found.job_id for found in parsed.records] == [22]
    (error,) = parsed.errors
    assert error.field == field
    assert error.record.startswith("job ")
    assert field in str(error)


def test_hostile_text_is_only_text():
    """Names and comments are read unchanged; nothing in them reaches another field."""
    evil = 'a UserId=root(0) "}],\n{"job_id": 1\x1b[31m'
    found = job(PENDING_22, name=evil, comment=evil)
    assert (found.name, found.comment, found.user, found.job_id) == (evil, evil, "ann", 22)


def indented(*records):
    """The records as Slurm prints them."""
    return json.dumps({"meta": {}, "errors": [], "jobs": records}, indent=2).encode()


def test_a_few_records_are_picked_from_those_of_all_jobs():
    """The picked jobs are those that parsing all gives, in the order of their ids, whatever users write."""
    evil = '"},\n    {\n      "job_id": 23,\n      "comment": "\n    }'
    records = (RUNNING_22, PENDING_22 | {"name": evil, "comment": evil}, PENDING_22 | {"job_id": 23}, RUNNING_22)
    found = JobsParser().pick(indented(*records), ["23", "22"])
    assert found == read(*records[1:3]).records


def test_each_of_many_records_is_found():
    """The first, the last and all others, also where ids are missing; a job that is not listed is not found."""
    listed = [number for number in range(1, 1500) if number % 7]
    document, parser = indented(*(PENDING_22 | {"job_id": number} for number in listed)), JobsParser()
    assert len(document) > 10 * SEARCHED_BYTES
    for number in range(1, 1501):
        found = parser.pick(document, [str(number)])
        assert (found and [job.job_id for job in found]) == ([number] if number in listed else None)


@given(st.lists(st.integers(1, 10**9), min_size=500, max_size=1000, unique=True), st.data())
@settings(max_examples=20)
def test_in_any_order_a_few_records_are_found(listed, data):
    """Tasks of arrays have later ids than their neighbours; ids begin again at Slurm's largest one."""
    document = indented(*(PENDING_22 | {"job_id": number} for number in listed))
    wanted = data.draw(st.sets(st.sampled_from(listed), min_size=1, max_size=MOST_SCANS))
    found = JobsParser().pick(document, set(map(str, wanted)))
    assert [job.job_id for job in found] == sorted(wanted)


def test_a_picked_job_is_the_same_object_when_all_are_read():
    """And the same as before, if its record is unchanged."""
    parser, document = JobsParser(), indented(RUNNING_22, PENDING_22)
    (picked,) = parser.pick(document, ["22"])
    assert parser.parse(document).records[1] is picked
    assert parser.pick(document, ["22"]) == (picked,)
    assert parser.pick(document, ["22"])[0] is picked


FORGED = '\n    {\n      "job_id": 22,\n' + json.dumps(PENDING_22 | {"user_name": "root"}, indent=6)[2:-2] + "\n    }"


@pytest.mark.parametrize("field", ["account", "user_name"])  # before the job's id, and behind it
@pytest.mark.parametrize(
    "text", ["x\ny", "\n    }", "\n    {\n", "\n    {\n      ", "\n    }\n    {\n", '\n      "job_id": 22,\n', FORGED]
)
def test_a_line_break_that_slipped_through_into_a_text_forges_no_record(field, text):
    """Such a record is left to the parser of all, and the job of another record is that of the real one."""
    evil = {"account": ""} | PENDING_22 | {"job_id": 21, field: text}
    document = indented({"account": "lab"} | PENDING_22, evil, PENDING_22 | {"job_id": 23})
    written = json.dumps(text).encode()
    raw = document.replace(written, written.replace(b"\\n", b"\n"))
    assert raw != document
    assert JobsParser().pick(raw, ["21"]) is None
    for job_id, number in (("22", 0), ("23", 2)):
        found = JobsParser().pick(raw, [job_id])
        assert found is None or found == parse_jobs(raw.decode()).records[number : number + 1]


@pytest.mark.parametrize(
    ("records", "job_id"),
    [
        ((PENDING_22,), "2"),  # no job
        ((PENDING_22 | {"job_state": "DANCING"},), "22"),  # an unreadable record
        ((PENDING_22 | {"array_job_id": 22, "array_task_string": "1-3"},), "22"),  # several jobs
    ],
)
def test_a_record_that_is_not_that_of_one_job_is_not_picked(records, job_id):
    """Then all records are to be read."""
    assert JobsParser().pick(indented(*records), [job_id]) is None


@pytest.mark.parametrize(
    "document",
    [b"", json.dumps({"jobs": [PENDING_22]}).encode(), indented(PENDING_22)[:200], indented(PENDING_22)[:-90]],
)
def test_nothing_is_picked_from_a_document_of_another_form(document):
    """A document on one line and one that was cut off are left to the parser of all records."""
    assert JobsParser().pick(document, ["22"]) is None


def test_gpus_of_several_types_are_counted_together():
    """An untagged job may hold GPUs of several types; Slurm does not report how many are of which type."""
    two = {
        "tres_per_job": "gres:gpu:v100:4,gres:gpu:p100:1",
        "gres_detail": ["gpu:v100:4(IDX:0-3)", "gpu:p100:1(IDX:0)"],
    }
    found = job(RUNNING_22, **two)
    assert (found.allocated, found.allocated_gpu_type) == ({"n3": 4, "n4": 1}, None)
    assert (found.gpus_total, found.gpu_type, found.gpu_types) == (5, None, ("p100", "v100"))
    ending = job(RUNNING_22, **two | {"job_state": "COMPLETING", "gres_detail": []})
    assert sum(ending.allocated.values()) >= 5


@pytest.mark.parametrize("document", ["", "{", "[]", "{}", '{"jobs": 5}', '{"jobs": null}'])
def test_a_document_that_is_no_list_of_jobs_is_refused(document):
    """Such a document does not read as an empty cluster."""
    with pytest.raises(MalformedOutputError, match="squeue --json"):
        parse_jobs(document)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda leaf: st.lists(leaf) | st.dictionaries(st.text(), leaf),
    ),
    st.sampled_from(sorted(RUNNING_22)),
)
def test_any_value_of_a_field_gives_jobs_or_a_named_error(value, field):
    """No other exception is raised."""
    parsed = read(RUNNING_22 | {field: value})
    assert len(parsed.records) + len(parsed.errors) >= 1


@pytest.mark.parametrize("record", [NODE_22, NODE_24])
def test_a_node_is_read_in_the_form_of_each_release(record):
    """Configured resources, names, and whether the node accepts jobs."""
    (node,) = parse_nodes(json.dumps({"nodes": [record]})).records
    assert (node.name, node.gpus, node.cpus, node.memory) == ("n1", {"v100": 4}, 16, 64000 * MIB)
    assert (node.reason, node.gpus_allocated) == ("spare", 2)
    assert (node.features, node.partitions, node.accepts) == ({"v100", "fast"}, {"main", "long"}, True)


@pytest.mark.parametrize(
    ("changes", "accepts"),
    [
        ({"state": "idle"}, True),
        ({"state": "allocated"}, True),
        ({"state": "idle", "state_flags": ["DRAIN"]}, False),
        ({"state": "mixed", "state_flags": ["NOT_RESPONDING"]}, False),
        ({"state": ["IDLE", "MAINTENANCE"]}, True),
        ({"state": "down"}, False),
        ({"state": "unknown"}, False),
        ({"state": ["IDLE", "POWERED_DOWN"]}, False),
        ({"state": ["IDLE", "something new"]}, False),
    ],
)
def test_only_a_node_in_usable_states_accepts_jobs(changes, accepts):
    """A node in an unknown state accepts no jobs."""
    (node,) = parse_nodes(json.dumps({"nodes": [NODE_22 | changes]})).records
    assert node.accepts is accepts


def test_a_wrong_node_is_named():
    """The unreadable node hides no other."""
    parsed = parse_nodes(
        json.dumps({"nodes": [NODE_22, NODE_22 | {"name": "n2", "cpus": None}, NODE_22 | {"name": None}]})
    )
    assert [node.name for node in parsed.records] == ["n1"]
    assert [error.record for error in parsed.errors] == ["node 'n2'", "node None"]


@pytest.mark.parametrize("field", sorted(NODE_22.keys() | NODE_24.keys() | {"reservation", "gres_used"}))
@pytest.mark.parametrize("record", [NODE_22, NODE_24])
@pytest.mark.parametrize("value", ["x", ["RESERVED"], 7, None])
def test_successive_nodes_read_as_if_each_were_read_alone(record, field, value):
    """Whichever field changes; and an unchanged node is the same object, whatever its load."""
    parser = NodesParser()
    first = json.dumps({"nodes": [record, record | {"name": "n2", "cpu_load": 5}]})
    second = json.dumps({"nodes": [record | {field: value}, record | {"name": "n2", "cpu_load": 99}]})
    before, after = parser.parse(first), parser.parse(second)
    assert before == parse_nodes(first)
    expected = parse_nodes(second)
    assert after.records == expected.records
    assert list(map(str, after.errors)) == list(map(str, expected.errors))
    assert after.records[-1] is before.records[-1]


@pytest.mark.parametrize("document", ["", "{", "[]", '{"nodes": 5}'])
def test_a_document_that_is_no_list_of_nodes_is_refused(document):
    """Such a document does not read as a cluster without nodes."""
    with pytest.raises(MalformedOutputError, match="sinfo --json"):
        NodesParser().parse(document)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (5, 5),
        (None, None),
        (5.0, 5),
        (4294967294, None),
        ({"set": True, "infinite": False, "number": 5}, 5),
        ({"set": False, "infinite": False, "number": 0}, None),
        ({"set": True, "infinite": True, "number": 0}, None),
    ],
)
def test_numbers_are_read_in_both_forms(value, number):
    """Unset, infinite and NO_VAL are None."""
    assert json_releases.number(value) == number


@pytest.mark.parametrize(
    ("changes", "reserved"),
    [
        ({"state": "idle"}, False),
        ({"state": "idle", "state_flags": ["MAINTENANCE", "RESERVED"]}, True),
        ({"state": ["MIXED", "RESERVED"], "reservation": "x"}, True),
    ],
)
def test_a_reserved_node_is_marked(changes, reserved):
    """The node's flags mark it; later releases name the reservation as well."""
    (node,) = parse_nodes(json.dumps({"nodes": [NODE_22 | changes]})).records
    assert node.reserved is reserved


RESERVATIONS = """\
ReservationName=fut StartTime=100 EndTime=160 Duration=00:01:00 Nodes=n[1,3] NodeCnt=2 CoreCnt=32 Features=(null) \
PartitionName=(null) Flags=MAINT,SPEC_NODES TRES=cpu=32 Users=-nobody,-bin Groups=(null) State=INACTIVE
ReservationName=core StartTime=1 EndTime=2 Nodes=n3 CoreCnt=4 Flags=   NodeName=n3 CoreIDs=0-3 TRES=cpu=4 \
Users=ann,ben State=ACTIVE Comment=x Users=eve Nodes=n9
ReservationName=odd StartTime=never EndTime=2 Nodes=n1
ReservationName=lic StartTime=1 EndTime=2 Nodes=(null) Flags=ANY_NODES Users=(null) Accounts=a Licenses=x:1
"""


def test_reservations_are_read_line_by_line():
    """An admin's comment forges no field, and an unreadable line hides no other."""
    parsed = parse_reservations(RESERVATIONS)
    later, cores, licences = parsed.records
    assert (later.name, later.start, later.end, later.nodes) == ("fut", 100.0, 160.0, {"n1", "n3"})
    assert (later.users, later.barred_users, later.flags) == (set(), {"nobody", "bin"}, {"MAINT", "SPEC_NODES"})
    assert (cores.nodes, cores.users, cores.flags) == ({"n3"}, {"ann", "ben"}, set())
    assert (licences.nodes, licences.users) == (set(), set())
    assert [(error.record, error.field) for error in parsed.errors] == [("reservation 'odd'", "StartTime")]
    assert parse_reservations("No reservations in the system\n").records == ()
