from dataclasses import replace

import pytest

from contrib.reproductions.published_loops.shockwave import ShockwaveLoop, isolated_seconds
from metasched.core.model import Node, Placement
from metasched.simulator import metrics
from metasched.simulator.records import Settings
from metasched.simulator.simulation import simulate
from metasched.simulator.traces.errors import TraceError
from metasched.simulator.traces.shockwave import COLUMNS, read_shockwave
from metasched.throughput.batch_size_regimes import FAMILIES, Mode, model_name
from metasched.throughput.throughput_table import ThroughputTable
from policies.baselines.allox import AlloX, AlloXParameters
from policies.baselines.gandiva_fair import GandivaFair, GandivaFairParameters
from tests.unit.published import DATA, needs

NODES = (Node("cluster", "v100", 32, 0, 0),)
PUBLISHED = ("shockwave", "traces", "120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace")
TABLE = ThroughputTable(
    {
        "v100": {
            (model_name("LM", batch), gpus): 2.0 * gpus / batch**0.5 for batch in (10, 20, 40, 80) for gpus in (1, 2)
        }
    },
    {},
)


def line(**changes):
    """A line of a trace."""
    values = {
        "job_type": model_name("LM", 10),
        "command": "python3 main.py --batch_size 10",
        "working_directory": "language_modeling",
        "num_steps_argument": "--steps",
        "needs_data_directory": 1,
        "total_steps": 1000,
        "scale_factor": 1,
        "mode": "static",
        "priority_weight": 1,
        "slo": -1.0,
        "duration_seconds": 100,
        "arrival_seconds": 0,
    }
    return "\t".join(str({**values, **changes}[column]) for column in COLUMNS)


def read(tmp_path, *lines, **more):
    """A trace of these lines."""
    path = tmp_path / "a.trace"
    path.write_text("\n".join(lines) + "\n")
    return read_shockwave(path, TABLE, **more)


def test_a_line_is_a_job_with_its_regimes(tmp_path):
    """It has the GPUs, arrival, steps and batch sizes of its line."""
    lines = [line(), line(mode="gns", total_steps=30 * FAMILIES["LM"].steps(10), scale_factor=2, arrival_seconds=7.5)]
    one, other = read(tmp_path, *lines).submissions
    assert (one.job.uid, one.job.gpus, one.job.submitted, one.training.total) == ("1", 1, 0.0, 1000)
    assert (other.job.uid, other.job.gpus, other.job.submitted) == ("2", 2, 7.5)
    assert other.training.mode is Mode.GNS
    assert [regime.batch for regime in other.training.regimes] == [10, 20]


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"job_type": "GPT (batch size 1)"}, "job_type"),
        ({"mode": "wild"}, "mode"),
        ({"total_steps": 0}, "total_steps"),
        ({"scale_factor": 4}, "scale_factor"),
        ({"scale_factor": 64}, "scale_factor"),
        ({"arrival_seconds": -1}, "arrival_seconds"),
        ({"arrival_seconds": "soon"}, "arrival_seconds"),
        ({"priority_weight": 0}, "priority_weight"),
    ],
)
def test_a_bad_line_is_refused_by_line_and_column(tmp_path, changes, column):
    """These are unknown models and modes, impossible numbers, and jobs wider than the cluster."""
    with pytest.raises(TraceError) as caught:
        read(tmp_path, line(), line(**changes), most_gpus=32)
    assert (caught.value.line, caught.value.column) == (2, column)


def test_arrivals_must_be_sorted(tmp_path):
    """A job that arrives before the line above is refused."""
    with pytest.raises(TraceError, match="before the line above"):
        read(tmp_path, line(arrival_seconds=5), line(arrival_seconds=4))


def test_a_line_with_too_few_fields_is_refused(tmp_path):
    """Gavel's format, for example, lacks two columns."""
    with pytest.raises(TraceError, match="12"):
        read(tmp_path, "\t".join(line().split("\t")[:10]))


def test_a_restart_costs_steps_but_not_in_the_first_round(tmp_path):
    """The first job runs in all rounds; the second one starts later, and loses 20 s of its first full round."""
    table = ThroughputTable({"v100": {(model_name("LM", 80), 1): 1.0}}, {})
    path = tmp_path / "a.trace"
    lines = [line(job_type=model_name("LM", 80), total_steps=240, arrival_seconds=at) for at in (0, 60)]
    path.write_text("\n".join(lines))
    fair = GandivaFair(GandivaFairParameters(as_published=True))
    outcome = ShockwaveLoop(read_shockwave(path, table), NODES, fair, Settings(round_seconds=120.0)).run()
    assert [job.finished for job in outcome.jobs] == [240.0, 380.0]
    assert [job.overhead_seconds for job in outcome.jobs] == [0.0, 20.0]


def test_the_batch_size_changes_at_the_end_of_a_round_and_epochs_are_kept(tmp_path):
    """A job that adapts ends sooner than one that does not, and close to its isolated duration."""
    steps = 30 * FAMILIES["LM"].steps(10)
    workload = read(tmp_path, line(total_steps=steps, mode="gns"), line(total_steps=steps))
    outcome = ShockwaveLoop(workload, NODES, GandivaFair(), Settings(round_seconds=120.0)).run()
    adapting, static = (job.jct for job in outcome.jobs)
    assert adapting < static
    assert adapting == pytest.approx(isolated_seconds(workload.submissions[0]), rel=0.15)


def test_our_simulation_takes_as_long_as_the_regimes(tmp_path):
    """With a GPU for each, every job ends after its isolated duration."""
    steps = 30 * FAMILIES["LM"].steps(10)
    workload = read(tmp_path, line(total_steps=steps, mode="gns"), line(total_steps=steps, mode="accordion"))
    outcome = simulate(workload, NODES, GandivaFair(), Settings(round_seconds=120.0))
    place = Placement(("cluster",), 1, "v100")
    alone = [metrics.isolated_seconds(one.training, place) for one in workload.submissions]
    assert [job.jct for job in outcome.jobs] == pytest.approx(alone, rel=0.01)


@needs(*PUBLISHED)
@pytest.mark.parametrize(
    ("policy", "makespan", "average", "worst"),
    [
        (
            GandivaFair(GandivaFairParameters(recompute_seconds=1000.0, carry=False, as_published=True)),
            32367.4344,
            12574.2725,
            1.85361,
        ),
        (
            AlloX(AlloXParameters(recompute_seconds=1000.0, carry=False, alpha=0.2, as_published=True)),
            32488.6211,
            9926.3066,
            4.96351,
        ),
    ],
    ids=["gandiva_fair", "allox"],
)
def test_the_published_figures_are_equal(policy, makespan, average, worst):
    """Makespan, mean JCT and worst rho are those of the artifact in all known digits."""
    table = ThroughputTable.read(DATA / "shockwave" / "tacc_throughputs.json")
    workload = read_shockwave(DATA.joinpath(*PUBLISHED), table, most_gpus=32)
    outcome = ShockwaveLoop(workload, NODES, policy, Settings(round_seconds=120.0)).run()
    alone = {one.job.uid: isolated_seconds(one) for one in workload.submissions}
    jct = {job.uid: job.jct for job in outcome.jobs}
    assert round(outcome.ended, 4) == makespan
    assert round(sum(jct.values()) / len(jct), 4) == average
    assert max(round(time / (alone[uid] * 120 / 32), 5) for uid, time in jct.items()) == worst


@needs(*PUBLISHED)
def test_our_simulation_of_the_published_trace_ends():
    """Every job is complete, with restarts that cost time."""
    table = ThroughputTable.read(DATA / "shockwave" / "tacc_throughputs.json")
    workload = read_shockwave(DATA.joinpath(*PUBLISHED), table, most_gpus=32)
    workload = replace(workload, submissions=workload.submissions[:20])
    outcome = simulate(workload, NODES, AlloX(), Settings(round_seconds=120.0, restart_seconds=20.0))
    assert all(job.finished is not None for job in outcome.jobs)
