import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core.model import Placement
from metasched.throughput.batch_size_regimes import (
    DOUBLINGS,
    FAMILIES,
    Mode,
    Regime,
    RegimeTraining,
    UnknownFamilyError,
    batch_at,
    model_name,
    parse_model,
    regimes,
)
from metasched.throughput.throughput_table import ThroughputTable

PLACE = Placement(("n",), 1, "v100")
LM = FAMILIES["LM"].steps


def table(*batches, gpus=1):
    """Steps per second of LM at some batches: 100 / batch."""
    return ThroughputTable({"v100": {(model_name("LM", batch), gpus): 100.0 / batch for batch in batches}}, {})


def test_a_static_job_has_one_regime():
    """Its batch size never changes."""
    assert regimes(Mode.STATIC, "LM", 10, 1, 50) == (Regime(10, 50),)


def test_the_gradient_noise_doubles_the_batch_up_to_the_largest():
    """LM from batch 5 on one GPU doubles at epochs 31, 41, 61 and 71, to the largest batch, 80."""
    expected = ((5, 31), (10, 41), (20, 61), (40, 71), (80, 100))
    assert regimes(Mode.GNS, "LM", 5, 1, 100) == tuple(Regime(batch, end) for batch, end in expected)


def test_accordion_is_small_in_critical_regimes_and_at_the_beginning():
    """ResNet-50's first ten epochs of every thirty are critical; the first 30 % of a job have a small batch anyway."""
    found = regimes(Mode.ACCORDION, "ResNet-50", 32, 1, 60)
    assert found == (Regime(32, 19), Regime(128, 30), Regime(32, 40), Regime(128, 60))


@pytest.mark.parametrize("mode", list(Mode))
def test_a_job_that_begins_with_the_largest_batch_keeps_it(mode):
    """Models that never adapt keep their batch, too."""
    assert regimes(mode, "LM", 80, 1, 50) == (Regime(80, 50),)
    assert regimes(mode, "Transformer", 16, 1, 50) == (Regime(16, 50),)


@given(st.sampled_from(sorted(DOUBLINGS)), st.integers(1, 200))
def test_batches_grow_by_doubling_and_stay_within_the_limit(key, epochs):
    """With the gradient noise, every batch is twice the one before, and none is above the family's largest."""
    family, batch, gpus = key
    sizes = [batch_at(Mode.GNS, family, batch, gpus, epoch=epoch, epochs=epochs) for epoch in range(epochs)]
    assert sizes[0] == batch
    assert all(after in (before, 2 * before) for before, after in itertools.pairwise(sizes))
    assert max(sizes) <= FAMILIES[family].largest


def test_the_pace_changes_where_a_regime_ends():
    """Until the end of the regime the speed is constant; an epoch has equally many steps at every batch size."""
    training = RegimeTraining.of(table(10, 20, 40, 80), Mode.GNS, model_name("LM", 10), 1, 30 * LM(10))
    first = training.pace(0.0, PLACE)
    assert first.steps_per_second == 10.0
    assert first.until == 11 * LM(10)
    second = training.pace(first.until, PLACE)
    assert second.steps_per_second == pytest.approx(5.0 * LM(10) / LM(20))
    assert second.until == 21 * LM(10)
    assert training.pace(second.until, PLACE).until == math.inf


def test_a_job_without_a_known_speed_or_with_a_co_runner_makes_no_progress():
    """Its pace is 0."""
    training = RegimeTraining.of(table(10), Mode.STATIC, model_name("LM", 10), 1, 100)
    assert training.pace(0.0, Placement(("n",), 1, "k80")).steps_per_second == 0.0
    assert training.pace(0.0, Placement(("n",), 0, None)).steps_per_second == 0.0
    assert training.pace(0.0, PLACE, training).steps_per_second == 0.0


def test_policies_know_the_speed_of_the_present_regime():
    """The speed is in steps of the first regime, and the same object until the regime ends."""
    training = RegimeTraining.of(table(10, 20, 40, 80), Mode.GNS, model_name("LM", 10), 1, 30 * LM(10))
    now, later = training.known(0.0), training.known(12.0 * LM(10))
    assert now is training.known(1.0)
    assert now.steps_per_second("v100", (1,)) == 10.0
    assert later.steps_per_second("v100", (1,)) == pytest.approx(5.0 * LM(10) / LM(20))
    assert now.steps_per_second("k80", (1,)) is None
    assert now.steps_per_second_with(later, "v100", (1,)) is None


def test_a_regime_of_an_unmeasured_batch_is_replaced_by_the_one_before():
    """The regime before is extended until one with a measured batch begins."""
    training = RegimeTraining.of(table(10, 40, 80), Mode.GNS, model_name("LM", 10), 1, 60 * LM(10))
    assert training.regimes == (Regime(10, 21), Regime(40, 41), Regime(80, 60))


def test_names_of_models_are_parsed_and_made():
    """A name is a known family with a batch size; other names are refused."""
    assert parse_model(model_name("LM", 10)) == ("LM", 10)
    for wrong in ("LM", "LM (batch size x)", "GPT (batch size 8)", "LM (batch size 0)"):
        with pytest.raises(UnknownFamilyError, match="family"):
            parse_model(wrong)
