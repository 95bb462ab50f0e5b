import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core.model import Placement
from metasched.learning.profiling_sizes import gpus_by_node, world_sizes_to_profile
from metasched.learning.throughput_learning import ThroughputLearning
from metasched.shared_dir.mailbox import Lease, Mailbox, ProfilingRuns
from metasched.shared_dir.reports import ProfilingReport, parse_line
from metasched.slurm.errors import TagError
from metasched.slurm.tags import parse_tag
from metasched.store import Store
from metasched.throughput.measured_speed import MeasuredSpeed
from tests.builders import job

NOW = 1.7e9


def place(nodes, each):
    return Placement(tuple(f"n{number}" for number in range(nodes)), each, "v100")


def elastic(speed=None, least=1):
    return job("a", 2, least, 64).evolve(speed=MeasuredSpeed("a") if speed is None else speed)


@pytest.mark.parametrize(
    ("nodes", "each", "tried"),
    [
        (1, 1, ()),
        (1, 4, (1, 2)),
        (2, 2, (1, 2)),
        (4, 4, (1, 2, 4, 8)),
        (1, 6, (1, 2, 4)),
        (2, 3, (1, 2)),
        (3, 4, (1, 2, 4, 8)),
    ],
)
def test_powers_of_two_below_the_run_are_profiled(nodes, each, tried):
    """They fill whole nodes of the placement."""
    assert world_sizes_to_profile(elastic(), place(nodes, each)) == tried


def test_known_speeds_are_not_profiled():
    """The speed comes from a run or from a profiling run."""
    speed = MeasuredSpeed("a").after(("v100", (2,)), None, 3.0)
    assert world_sizes_to_profile(elastic(speed), place(1, 8)) == (1, 4)


def test_a_job_is_not_profiled_below_its_min_gpus():
    """It may not fit there."""
    assert world_sizes_to_profile(elastic(least=2), place(1, 8)) == (2, 4)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 64))
def test_the_spread_of_a_world_size_has_its_gpus(nodes, each, gpus):
    """No node has more GPUs than the placement has there."""
    spread = gpus_by_node(place(nodes, each), gpus)
    if spread is not None:
        assert sum(spread) == gpus
        assert max(spread) <= each
        assert len(spread) <= nodes


@pytest.mark.parametrize(("text", "meant"), [("trials=yes", True), ("trials=no", False), ("", False)])
def test_the_tag_allows_profiling_runs(text, meant):
    """Only the user knows whether the script uses the shim."""
    assert parse_tag(f"metasched {text}").trials is meant


def test_another_value_of_trials_is_refused():
    """The message has the allowed values."""
    with pytest.raises(TagError, match="write yes or no"):
        parse_tag("metasched trials=maybe")


def test_a_lease_keeps_its_profiling_runs(tmp_path):
    """A later round that renews the lease keeps them, too."""
    box = Mailbox(tmp_path)
    lease = Lease(
        uid="0123456789abcdef",
        slurm_job_id="7",
        run=1,
        round=1,
        round_end=NOW,
        gpus=4,
        gpu_type="v100",
        nodes={"n1": 4},
        trials=ProfilingRuns((1, 2)),
    )
    box.write_lease(lease)
    assert box.read_lease(lease.uid) == lease
    box.write_lease(msgspec.structs.replace(lease, trials=None))
    assert box.read_lease(lease.uid).trials is None


def test_a_line_of_a_profiling_run_is_read():
    """The report has world size, steps and seconds."""
    line = b'{"v": 1, "t": 1700000000, "kind": "trial", "world_size": 2, "steps": 10, "samples": 80, "seconds": 2.5}'
    assert parse_line(line, NOW) == ProfilingReport(NOW, world_size=2, steps=10, seconds=2.5)


def test_profiling_runs_become_speeds_by_placement(tmp_path):
    """They count for the GPU type of the run, and for the nodes of the profiling run."""
    with Store.open(tmp_path / "m.db") as store:
        learning = ThroughputLearning(store, None)
        reports = [ProfilingReport(NOW, world, 10, seconds) for world, seconds in ((1, 10.0), (4, 2.0))]
        learning.learn_profiling_runs("ann/net", place(2, 2), reports)
        speed = ThroughputLearning(store, None).speed("ann/net")
    assert speed.steps_per_second("v100", (1,)) == 1.0
    assert speed.steps_per_second("v100", (2, 2)) == 5.0
    assert speed.steps_per_second("v100", (4,)) is None
