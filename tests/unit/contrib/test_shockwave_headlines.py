"""The tables of Shockwave's headlines, with few jobs."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from contrib.reproductions.replayed_batches import RecordingPollux, replayed
from contrib.reproductions.shockwave_headlines import MIXES, TABLES, Case, Headlines, MisinformedShockwave, on_trace
from contrib.reproductions.stored_results import Results
from metasched.core.batching import BatchRegime
from metasched.core.model import Node, Placement
from metasched.core.policy import PolicyState
from metasched.simulator.generate.pollux import PolluxWorkloadParameters, generate_pollux
from metasched.simulator.metrics import isolated_seconds
from metasched.simulator.records import Settings
from metasched.simulator.simulation import simulate
from metasched.throughput.batch_size_regimes import Mode
from metasched.throughput.batch_speed import batch_speed
from metasched.throughput.goodput_profile import packed
from metasched.throughput.throughput_table import ThroughputTable
from policies.shockwave.policy import Shockwave, ShockwaveParameters
from tests.builders import job, linear, nodes, snapshot
from tests.unit.contrib.test_pollux_headlines import short_profiles
from tests.unit.simulator.test_generate_shockwave import TABLE


def published(_, *, adaptive):
    """Short jobs of measured applications, as in Pollux's workloads."""
    return generate_pollux(PolluxWorkloadParameters(jobs=200, hours=1.0, adaptive=adaptive), 1, short_profiles())


def seconds(one):
    """The duration of a job alone on the GPUs that it asks for."""
    spread = packed(one.job.gpus, 4)
    gpu_type = one.job.gpu_types[0] if one.job.gpu_types else "v100"
    place = Placement(tuple(f"n{each}" for each in range(len(spread))), max(spread), gpu_type, spread)
    return isolated_seconds(one.training, place)


def test_tables_have_a_row_for_each_case(monkeypatch):
    """Each row has as many cells as the table's head."""
    runs = Headlines(TABLE, published, [1], 0.02, Results(None))
    figures = runs.figures(Case())
    assert 0.0 < figures["jct"] <= figures["makespan"]
    replays = runs.replay("one")
    assert replays.keys() == {"pollux", "shockwave"}
    monkeypatch.setattr(runs, "figures", lambda case: figures | {"jct": float(case.seed)})
    monkeypatch.setattr(runs, "replay", lambda _: replays)
    for table in TABLES.values():
        head, rule, *rows = table(runs)
        assert len(rows) >= 4
        assert {line.count("|") for line in (head, rule, *rows)} == {head.count("|")}


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_noise_is_of_the_remaining_work(monkeypatch, noise):
    """A job's error is within the noise, and the same in every round."""
    told = []
    monkeypatch.setattr(Shockwave, "decide", lambda policy, seen, state: told.append(seen.jobs[0].remaining_steps))
    policy = MisinformedShockwave(ShockwaveParameters(), noise)
    for done in (0.0, 8000.0):
        one = job("a", 1, total_steps=9000.0, progress_steps=done, speed=linear(1.0))
        policy.decide(snapshot([one], nodes(1)), PolicyState(1, {}))
    assert abs(told[0] / 9000.0 - 1.0) <= noise
    assert (told[0] == 9000.0) is (noise == 0.0)
    assert told[0] / 9000.0 == pytest.approx(told[1] / 1000.0)


def test_batches_that_pollux_chose_are_replayed():
    """A job trains the same work at its recorded batches, one after the other, on the GPUs that it asks for."""
    policy, the_nodes = RecordingPollux(), tuple(Node(f"n{each}", "t4", 4, cpus=0, memory=0) for each in range(4))
    workload = published("any", adaptive=True).submissions[:4]
    simulate(replace(published("any", adaptive=True), submissions=workload), the_nodes, policy, Settings(60.0))
    assert policy.regimes.keys() == {one.job.uid for one in workload}
    assert any(len(found) > 1 for found in policy.regimes.values())
    for found in policy.regimes.values():
        assert found[0].began == 0.0
        assert all(former.began < later.began for former, later in pairwise(found))

    fixed = replace(published("any", adaptive=False), submissions=published("any", adaptive=False).submissions[:1])
    (given,) = fixed.submissions
    least, total = given.job.gpus * given.training.profile.least_local, given.training.total
    regimes = [BatchRegime(given.training.batch, 0.0), BatchRegime(1, total / 2)]
    (one,) = replayed(fixed, {given.job.uid: regimes}).submissions
    assert (one.job.min_gpus, one.job.gpus, one.job.max_gpus) == (given.job.gpus,) * 3
    batches = [one.training.reported_batching(done).global_batch for done in (0.0, total / 2)]
    assert batches == [given.training.batch, least]
    (unchanged,) = replayed(fixed, {}).submissions
    assert seconds(unchanged) == pytest.approx(seconds(given))


def test_a_replayed_batch_is_known_at_its_efficiency():
    """The speed at another batch, as policies compute it, is the goodput with it."""
    fixed = published("any", adaptive=False)
    given = fixed.submissions[0]
    profile, spread = given.training.profile, packed(given.job.gpus, 4)
    most = profile.most_batch
    (one, *_) = replayed(
        fixed, {given.job.uid: [BatchRegime(given.training.batch, 0.0), BatchRegime(most, 1.0)]}
    ).submissions
    live = one.job.evolve(batching=one.training.reported_batching(0.0), batch_speeds=one.training.batch_speeds)
    assert batch_speed(live, most, profile.gpu_type, spread) == pytest.approx(profile.goodput(spread, most, 0))


def test_jobs_have_the_arrivals_and_durations_of_a_trace():
    """Durations are those at the first batch; GPUs are powers of two, up to the table's most."""
    few = published("any", adaptive=False)
    wide = [
        replace(one, job=one.job.evolve(gpus=12, max_gpus=12), training=replace(one.training, batch=4096))
        for one in few.submissions[:2]
    ]
    given = replace(few, submissions=(*wide, *few.submissions[2:]))
    static = dict(zip((Mode.STATIC, Mode.ACCORDION, Mode.GNS), MIXES["all static"], strict=True))
    slow = {job_type: speed / 2 for job_type, speed in TABLE.alone["v100"].items()}
    table = ThroughputTable({**TABLE.alone, "v100_unconsolidated": slow}, {}, server_gpus=8)
    made = on_trace(table, given, 1, static)
    assert len(made.submissions) == len(given.submissions)
    for one, other in zip(made.submissions, given.submissions, strict=True):
        assert one.job.submitted == other.job.submitted
        assert one.job.gpus == min(2 ** int(math.log2(other.job.gpus)), 8)
        assert seconds(one) == pytest.approx(seconds(other))
