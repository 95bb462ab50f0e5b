"""Jobs whose scripts change the batch size by themselves, in simulations."""

from dataclasses import replace

import pytest

from metasched.core.batching import AdaptationRule, BatchControl, BatchRegime
from metasched.core.model import Node
from metasched.simulator.records import Settings, Submission, Workload, trace_job
from metasched.simulator.simulation import simulate
from metasched.throughput.batch_size_regimes import FAMILIES, Mode, Regime, RegimeTraining, model_name
from metasched.throughput.throughput_table import TableTraining, ThroughputTable
from policies.baselines.fifo import Fifo
from policies.shockwave.policy import Shockwave, ShockwaveParameters

STEPS = FAMILIES["LM"].steps(10)
TABLE = ThroughputTable({"v100": {(model_name("LM", batch), 1): 100.0 for batch in (10, 20, 40, 80)}}, {})
NODES = (Node("n", "v100", 1, cpus=0, memory=0),)


class Watching(Fifo):
    """FIFO with regular rounds, which a change of a batch size brings forward where ``wakes`` is set."""

    name = "watching"
    steady = False
    wakes = True

    @property
    def wakes_on_batch(self):
        return self.wakes


class Lazy(Watching):
    wakes = False


def rounds(policy, mode=Mode.GNS):
    """The instants of the rounds, and the job's batch size in each of them."""
    seen = []
    training = RegimeTraining.of(TABLE, mode, model_name("LM", 10), 1, 30 * STEPS)
    work = Workload("test", (Submission(trace_job("1", "lm", 0.0, 1), training),))
    settings = Settings(round_seconds=250.0, restart_seconds=0.0)
    simulate(work, NODES, policy(), settings, watch=lambda shot, _: seen.append((shot.now, shot.jobs[0].batching)))
    return seen


def test_policies_see_the_rule_and_the_regimes_so_far():
    """Nothing tells when the next regime begins."""
    seen = [batching for _, batching in rounds(Lazy)]
    assert {one.adapts for one in seen} == {AdaptationRule.GNS}
    assert {one.control for one in seen} == {BatchControl.SCRIPT}
    assert {(one.first_batch, one.max_batch, one.most_regimes) for one in seen} == {(10, 80, None)}
    began = (BatchRegime(10, 0.0), BatchRegime(20, 11.0 * STEPS), BatchRegime(40, 21.0 * STEPS))
    assert [one.regimes for one in seen] == sorted(one.regimes for one in seen)
    assert {one.regimes for one in seen} >= {began[:1], began}
    assert all(one.regimes[-1].batch == one.global_batch for one in seen)
    assert {one.control for _, one in rounds(Lazy, Mode.STATIC)} == {BatchControl.FIXED}


def test_the_end_of_a_regime_brings_a_round_only_where_the_policy_asks_for_it():
    """The steps of a larger batch take as long as those of the first one, so an epoch is shorter."""
    changes = [11 * STEPS / 100.0, 11 * STEPS / 100.0 + 10 * FAMILIES["LM"].steps(20) / 100.0]
    lazy, reactive = ([at for at, _ in rounds(policy)] for policy in (Lazy, Watching))
    assert lazy == [250.0 * number for number in range(len(lazy))]
    assert [at for at in reactive if at % 250.0][:1] == pytest.approx(changes[:1])


def test_regimes_to_come_are_not_known_before_they_begin():
    """Two jobs that differ in later regimes alone are decided alike, forecasts included, until these begin."""

    def decided(ends):
        training = RegimeTraining.of(TABLE, Mode.GNS, model_name("LM", 10), 1, 30 * STEPS)
        regimes = tuple(Regime(batch, end) for batch, end in zip((10, 20), ends, strict=True))
        swapped = replace(training, regimes=regimes, ends=tuple(float(STEPS * end) for end in ends))
        other = TableTraining(TABLE, model_name("LM", 10), 20.0 * STEPS)
        jobs = [Submission(trace_job(uid, "lm", 0.0, 1), each) for uid, each in (("1", swapped), ("2", other))]
        seen = []
        simulate(
            Workload("test", tuple(jobs)),
            NODES,
            Shockwave(ShockwaveParameters(window_rounds=4)),
            Settings(round_seconds=250.0, restart_seconds=5.0),
            watch=lambda shot, found: seen.append((shot.now, found.targets, found.reasons, found.decision.planned)),
        )
        return seen

    early, late = decided((11, 30)), decided((21, 30))
    same = next(n for n, (one, other) in enumerate(zip(early, late, strict=False)) if one != other)
    assert early[same][0] >= 11 * STEPS / 100.0
    assert same > 2
