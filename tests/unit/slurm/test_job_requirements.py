"""A job's requirements from its Slurm record and tag, and its geometry in Slurm's options."""

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from metasched.core.model import Placement, Preempt
from metasched.slurm.errors import InvalidArgumentError, TagError
from metasched.slurm.job_requirements import geometry, is_managed, requirements, resizable
from metasched.slurm.tags import Tag, parse_tag
from metasched.slurm.update_arguments import update_arguments
from tests.builders import job
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm

MIB = 2**20


def submitted(*options, **changes):
    slurm = FakeSlurm()
    slurm_job_id = slurm.add("--hold", *options)
    return replace(next(job for job in slurm.jobs() if job.slurm_job_id.partition("_")[0] == slurm_job_id), **changes)


def needs(*options, tag="", known=None, **changes):
    return requirements(submitted(*options, **changes), parse_tag(f"metasched {tag}"), known)


@pytest.mark.parametrize(
    ("options", "tag", "expected"),
    [
        (["--gres=gpu:2"], "", (2, 2, 2, 1, None)),
        (["--gres=gpu:2", "-N2"], "", (4, 4, 4, 2, 2)),
        (["--gres=gpu:4", "-n8", "--ntasks-per-node=4"], "", (8, 8, 8, 2, None)),
        (["--gpus=4"], "", (4, 4, 4, None, None)),
        (["--gpus=4"], "max_nodes=2", (4, 4, 4, None, 2)),
        (["--gpus=4", "-N2"], "", (4, 4, 4, 2, 2)),
        (["--gpus=4", "--gpus-per-node=2"], "", (4, 4, 4, 2, None)),
        (["--gpus-per-task=1", "-n4"], "", (4, 4, 4, None, None)),
        (["--gres=gpu:2"], "min_gpus=1 max_gpus=8", (2, 1, 8, None, None)),
        (["--gres=gpu:2"], "min_gpus=1", (2, 1, 2, None, None)),
        (["--gres=gpu:2"], "max_gpus=4 max_nodes=1", (2, 2, 4, None, 1)),
        (["--gres=gpu:2", "-N2"], "max_gpus=16", (4, 4, 16, None, None)),
        (["--exclusive", "--gres=gpu:4"], "", (4, 4, 4, 1, None)),
    ],
)
def test_gpus_and_nodes_follow_from_request_and_tag(options, tag, expected):
    """A rigid job has the nodes of its request; an elastic job is limited by its tag alone."""
    found = needs(*options, tag=tag)
    assert (found.gpus, found.min_gpus, found.max_gpus, found.nodes, found.max_nodes) == expected


def shared(*options, tag="", shards=2):
    """Return the requirements of a job that requests shards."""
    slurm = FakeSlurm([FakeNode("n1", shards=4), FakeNode("n2", shards=4)])
    slurm.add("--hold", *options)
    return requirements(slurm.jobs()[0], parse_tag(f"metasched {tag}"), None, shards)


@pytest.mark.parametrize(
    ("options", "gpus", "nodes", "kind"),
    [
        (["--gres=shard:2"], 1, 1, None),
        (["--gres=shard:1"], 1, 1, None),
        (["--gres=shard:v100:2", "-N2"], 2, 2, "v100"),
    ],
)
def test_shards_are_one_gpu_on_each_node(options, gpus, nodes, kind):
    """However many shards of a GPU a job requests: alone it has the whole GPU, with a co-runner half of it."""
    found = shared(*options)
    assert (found.gpus, found.min_gpus, found.max_gpus, found.nodes) == (gpus, gpus, gpus, nodes)
    assert (found.shards, found.gpu_type) == (True, kind)


@pytest.mark.parametrize(
    ("options", "tag", "shards", "message"),
    [
        (["--gres=shard:3"], "", 2, "asks for 3 shards on each node, and there are 2 of each GPU"),
        (["--gres=shard:2"], "", None, "none in this cluster that metasched can use"),
        (["--gres=shard:2"], "max_gpus=4", 2, "'max_gpus=4' does not suit a job that asks for shards"),
    ],
)
def test_unavailable_shards_are_refused(options, tag, shards, message):
    """The message says what to request instead."""
    with pytest.raises(TagError, match=message):
        shared(*options, tag=tag, shards=shards)


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("sizes=1,2,4,8", (1, 8, (1, 2, 4, 8))),
        ("sizes=1,2,4,8 max_gpus=7", (1, 4, (1, 2, 4))),
        ("sizes=2,4 min_gpus=1 max_gpus=8", (2, 4, (2, 4))),
    ],
)
def test_sizes_are_the_range_of_an_elastic_job(tag, expected):
    """The fewest and the most GPUs are sizes, within min_gpus and max_gpus where the tag has them."""
    found = needs("--gres=gpu:2", tag=tag)
    assert (found.min_gpus, found.max_gpus, found.sizes) == expected


def test_model_and_deadline_come_from_the_tag():
    """They are the same for jobs with and without GPUs."""
    for options in (["--gres=gpu:1"], ["-N1"]):
        found = needs(*options, tag="slo=2h model=gpt")
        assert (found.slo_seconds, found.model) == (7200.0, "gpt")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--gres=gpu:2", "-n2", "-c4", "--mem=8G"], (4, 4096)),
        (["--gres=gpu:2"], (1, 4000)),
        (["--gres=gpu:2", "-N2", "--mem=8G"], (1, 4096)),
        (["--gres=gpu:3", "--mem=1000M"], (1, 333)),
        (["--gres=gpu:2", "-c3", "--mem-per-cpu=1G"], (2, 2048)),
        (["--gpus=4", "--cpus-per-gpu=6", "--mem-per-gpu=2G"], (6, 2048)),
        (["-N2", "-n8", "--mem=3G"], (4, 3072)),
        (["-n2", "-c2"], (4, 16000)),
    ],
)
def test_cpus_and_memory_are_counted_per_unit(options, expected):
    """CPUs are rounded up, memory down, so that a whole node's memory still fits."""
    found = needs(*options)
    assert (found.cpus_per_unit, found.memory_per_unit // MIB) == expected


@pytest.mark.parametrize(
    ("options", "tag", "message"),
    [
        (["--gres=gpu:2"], "min_gpus=4 max_gpus=8", "asks for 2 GPUs, fewer than 'min_gpus=4': ask for at least 4"),
        (["--gres=gpu:8"], "max_gpus=4", "asks for 8 GPUs, more than 'max_gpus=4': ask for at most 4"),
        (["--exclusive", "--gres=gpu:4"], "min_gpus=1", "it asks for whole nodes (--exclusive): write min_gpus=4"),
        (["--gres=gpu:1"], "preempt=suspend", "does not free the GPUs of a suspended job: write preempt=checkpoint"),
        ([], "min_gpus=1", "'min_gpus' does not suit a job without GPUs"),
        (["--gres=gpu:3"], "sizes=1,2,4", "asks for 3 GPUs, which 'sizes=1,2,4' leaves out"),
        ([], "sizes=1,2", "'sizes' does not suit a job without GPUs"),
        ([], "max_gpus=2", "'max_gpus' does not suit a job without GPUs"),
        ([], "gpu_types=v100", "'gpu_types' does not suit a job without GPUs"),
        ([], "trials=yes", "'trials' does not suit a job without GPUs"),
        ([], "batch=adaptive", "'batch' does not suit a job without GPUs"),
        (["-N3"], "max_nodes=2", "'max_nodes=2' is less than the 3 nodes that the job asks for"),
        (["-N3", "--gres=gpu:1"], "max_nodes=2", "'max_nodes=2' is less than the 3 nodes"),
        (["--gpus=5", "-N2"], "", "5 GPUs do not spread evenly over 2 nodes"),
        (["--gres=gpu:v100:2"], "gpu_types=a100", "asks for GPUs of type 'v100', which 'gpu_types=a100' leaves out"),
        (["--gres=gpu:2"], "gpu_types=v100,h100", "no GPU type 'h100' in this cluster: name some of a100, v100"),
        (["--gres=gpu:h100:2"], "", "there is no GPU type 'h100' in this cluster"),
        (["--gpus=v100:1,gpu:a100:1"], "", "GPUs of several types ('a100', 'v100'), which metasched "),
    ],
)  # fmt: skip
def test_a_tag_that_does_not_fit_the_request_is_an_error_with_its_fix(options, tag, message):
    """The tag is checked against the request and against the cluster."""
    slurm_options = [option.replace("gpu:8", "gpu:4") for option in options]
    changes = {"gpus_per_node": 8} if slurm_options != options else {}
    with pytest.raises(TagError, match=re.escape(message)):
        needs(*slurm_options, tag=tag, known={"v100", "a100"}, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"het": True}, "heterogeneous jobs are not supported"),
        ({"gpus_per_socket": 1}, "--gpus-per-socket is not supported"),
    ],
)
def test_unsupported_forms_are_refused(changes, message):
    """A job in an unsupported form is not run in another form."""
    job = submitted("--gres=gpu:1", **changes)
    with pytest.raises(TagError, match=message):
        requirements(job, Tag())
    assert resizable(job) is not None


def test_types_come_from_the_request_or_the_tag():
    """A type in the request is final; without one, the tag's list counts."""
    assert needs("--gres=gpu:v100:2", tag="gpu_types=a100,v100").gpu_types == ("v100",)
    assert needs("--gres=gpu:2", tag="gpu_types=a100,v100").gpu_types == ("a100", "v100")
    assert needs("--gres=gpu:2").gpu_types == ()
    assert (needs("--gres=gpu:v100:2").gpu_type, needs("--gres=gpu:2", tag="gpu_types=v100").gpu_type) == ("v100", None)


def test_weight_preempt_and_steps_come_from_the_tag():
    """Requirements have the tag's values unchanged."""
    found = needs("-C", "fast&big", tag="preempt=suspend weight=0.5 total_steps=100")
    assert (found.weight, found.preempt, found.total_steps) == (0.5, Preempt.SUSPEND, 100)
    assert (found.gpus, found.nodes, found.max_nodes, found.features) == (0, 1, 1, {"fast", "big"})


@pytest.mark.parametrize(
    ("changes", "managed"),
    [
        ({"comment": "metasched weight=0.1"}, True),
        ({"comment": "\tmetasched"}, True),
        ({"comment": "metasched nonsense"}, True),
        ({"comment": "for metasched"}, False),
        ({"partition": "train"}, True),
        ({"partition": "main,train"}, True),
        ({"partition": "training"}, False),
        ({"qos": "gang"}, True),
        ({"qos": "Gang"}, True),
        ({"comment": "metasched", "batch": False}, False),
        ({"partition": "train", "batch": False}, False),
    ],
)
def test_a_job_is_recognised_by_comment_partition_or_qos(changes, managed):
    """A job without a batch script is never recognised: it cannot be requeued."""
    assert is_managed(submitted(**changes), partitions={"train"}, qos={"gang"}) is managed


def model_job(required):
    sizes = {"min_gpus": required.min_gpus, "max_gpus": required.max_gpus}
    units = {"cpus_per_unit": required.cpus_per_unit, "memory_per_unit": required.memory_per_unit}
    return job("0" * 16, required.gpus, slurm_job_id="1", **sizes, **units)


def test_a_rigid_job_keeps_its_tasks_and_cpus():
    """Four tasks of one CPU with three GPUs stay four tasks of one CPU."""
    required = needs("--gres=gpu:3", "-n4", "--mem=900M")
    told = geometry(model_job(required), Placement(("n1",), 3, "v100"), required)
    assert (told.tasks, told.cpus, told.memory_per_node) == (4, 4, 900 * MIB)


def test_a_rigid_job_whose_tasks_do_not_spread_gets_one_task_per_gpu():
    """The example is ``--gpus=4`` with one task, on two nodes."""
    required = needs("--gpus=4", "-c8")
    told = geometry(model_job(required), Placement(("n1", "n2"), 2, "v100"), required, delay=1)
    assert (told.tasks, told.cpus, told.delay, told.gpu_type) == (4, 8, 1, None)


def test_an_elastic_jobs_tasks_cpus_and_memory_follow_its_gpus():
    """The GPU type stays that of the request."""
    required = needs("--gres=gpu:v100:2", "-n2", "-c4", "--mem=8G", tag="min_gpus=1 max_gpus=8")
    told = geometry(model_job(required), Placement(("n1", "n2"), 4, "v100"), required)
    assert (told.tasks, told.cpus, told.memory_per_node, told.gpu_type) == (8, 32, 16 * 2**30, "v100")


@given(
    options=st.builds("--gpus={} -n{} -c{}".format, st.integers(1, 4), st.integers(1, 8), st.integers(1, 4)),
    placement=st.builds(
        lambda nodes, gpus: Placement(tuple(f"n{number}" for number in range(nodes)), gpus, "v100"),
        st.integers(1, 4),
        st.integers(1, 4),
    ),
    elastic=st.booleans(),
)
def test_every_geometry_has_valid_update_arguments(options, placement, elastic):
    """Tasks are a multiple of nodes, CPUs of tasks, and no node needs more CPUs than placement counted."""
    required = needs(*options.split(), tag="min_gpus=1 max_gpus=16" if elastic else "")
    assume(elastic or required.gpus == placement.gpus)
    job = model_job(required)
    told = geometry(job, placement, required)
    assert update_arguments(told)
    nodes = len(placement.nodes)
    assert told.cpus // nodes <= max(job.node_cpus(placement.gpus_per_node), told.tasks // nodes)


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": ()},
        {"nodes": ("n1", "n1")},
        {"nodes": ("n1 Priority=5",)},
        {"nodes": ("n1,n2",)},
        {"nodes": ("",)},
        {"tasks": 3},
        {"tasks": 0},
        {"cpus": 5},
        {"gpus_per_node": -1},
        {"delay": -1},
        {"gpu_type": "v100 Priority=5"},
    ],
)
def test_an_impossible_geometry_never_reaches_slurm(changes):
    """A name that would be a second command is refused, too."""
    required = needs("--gpus=4", tag="max_gpus=8")
    told = geometry(model_job(required), Placement(("n1", "n2"), 2, "v100"), required)
    with pytest.raises(InvalidArgumentError):
        update_arguments(replace(told, **changes))
