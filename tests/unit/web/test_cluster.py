from dataclasses import replace

from msgspec.structs import replace as changed

from metasched.shared_dir.published_status import NodeStatus
from metasched.web.access import Viewer
from metasched.web.pages.cluster import groups_of, totals
from tests.unit.web.conftest import JOB, make_status

VIEWER = Viewer("ann")


def uses(group):
    return [(segment.use, segment.gpus) for segment in group.segments]


def test_every_gpu_of_a_node_has_one_use():
    """GPUs are of metasched's jobs, of other jobs, leaked, and free or out of service; together all of the node's."""
    node = NodeStatus("n1", "a100", 5, 4, accepts=True, gpus_total=8, gpus_others=2, gpus_leaked=1, gpus_free=1)
    (group,) = groups_of(make_status(jobs=(JOB,), nodes=(node,)), VIEWER)
    assert uses(group) == [("job", 4), ("others", 2), ("leaked", 1), ("free", 1)]
    (closed,) = groups_of(make_status(jobs=(JOB,), nodes=(replace(node, accepts=False),)), VIEWER)
    assert uses(closed) == [("job", 4), ("others", 2), ("leaked", 1), ("down", 1)]


def test_co_runners_hold_their_gpus_once():
    """Two jobs on the same GPUs are one segment, which says that the GPUs are shared."""
    other = changed(JOB, uid="u9", slurm_job_id="109", co_runner="101")
    first = changed(JOB, co_runner="109")
    (group,) = groups_of(
        make_status(jobs=(first, other), nodes=(NodeStatus("n1", "a100", 8, 4, accepts=True),)), VIEWER
    )
    assert uses(group) == [("job", 4), ("free", 4)]
    assert group.segments[0].shared


def test_jobs_that_the_page_may_not_read_hold_gpus():
    """GPUs in use of which no job is known are those of jobs that cannot be shown."""
    (group,) = groups_of(make_status(jobs=(), nodes=(NodeStatus("n1", "a100", 8, 4, accepts=True),)), VIEWER)
    assert uses(group) == [("private", 4), ("free", 4)]


def test_a_job_with_more_gpus_than_its_node_is_cut():
    """A status that contradicts itself is shown within the node's GPUs."""
    (group,) = groups_of(
        make_status(
            jobs=(changed(JOB, nodes={"n1": 99}),),
            nodes=(NodeStatus("n1", "a100", 8, 8, accepts=True),),
        ),
        VIEWER,
    )
    assert uses(group) == [("job", 8)]


def test_many_alike_nodes_are_one_group():
    """From 64 nodes on, alike ones are shown once, with their number; the sums stay the same."""
    nodes = tuple(NodeStatus(f"n{i:03}", "a100", 8, 0, accepts=i % 2 == 0) for i in range(512))
    groups = groups_of(make_status(jobs=(), nodes=nodes), VIEWER)
    assert [len(group.names) for group in groups] == [256, 256]
    found = totals(groups)
    assert (found["free"], found["down"]) == (2048, 2048)


def test_few_nodes_are_shown_each():
    """Below 64 nodes each is shown by itself."""
    nodes = tuple(NodeStatus(f"n{i}", "a100", 8, 0, accepts=True) for i in range(63))
    assert len(groups_of(make_status(jobs=(), nodes=nodes), VIEWER)) == 63


def test_a_drained_node_names_who_did_it_and_why(site):
    """The page has the reason, the user who drained the node, and a reservation with its end."""
    node = NodeStatus(
        "n1", "a100", 8, 0, accepts=False, reason="fan", drained_by="olga", reservation="course", reserved_until=1.8e9
    )
    site.publish(jobs=(), nodes=(node,))
    page = site.client().get("/").text
    assert "fan" in page
    assert "olga" in page
    assert "course" in page
    assert "2027-01-15" in page


def test_a_large_cluster_is_small_on_the_wire(site):
    """With 4,096 GPUs and 10,000 live jobs the first load of each page is below 100 KB, compressed."""
    nodes = tuple(NodeStatus(f"n{i:04}", "a100", 8, 8, accepts=True) for i in range(512))
    running = [
        changed(JOB, uid=f"u{i:05}", slurm_job_id=str(10_000 + i), name=f"job {i * 7919}", nodes={f"n{i // 4:04}": 2})
        for i in range(2048)
    ]
    waiting = [changed(JOB, uid=f"w{i:05}", slurm_job_id=str(90_000 + i), nodes={}, status="held") for i in range(7952)]
    site.publish(jobs=(*running, *waiting), nodes=nodes)
    client = site.client()
    for path in ("/", "/queue"):
        with client.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as answer:
            assert sum(map(len, answer.iter_raw())) < 100_000
