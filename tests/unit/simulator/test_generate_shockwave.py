from collections import Counter

import pytest

from metasched.simulator.generate.errors import GeneratorError
from metasched.simulator.generate.shockwave import GPUS, MODES, ShockwaveWorkloadParameters, shockwave_jobs
from metasched.throughput.batch_size_regimes import FAMILIES, Mode, model_name
from metasched.throughput.throughput_table import ThroughputTable

BATCHES = {
    "ResNet-18": (16, 32, 64, 128, 256),
    "LM": (5, 10, 20, 40, 80),
    "Transformer": (16, 32),
    "Recommendation": (512, 1024, 2048, 4096, 8192),
}
ROWS = {
    (model_name(family, batch), gpus): 4.0 * gpus
    for family, batches in BATCHES.items()
    for batch in batches
    for gpus in (1, 2, 4, 8)
    if family != "Recommendation" or gpus == 1
}
TABLE = ThroughputTable({"v100": ROWS}, {})


def drawn(seed=0, *, gpus=GPUS, modes=MODES, **parameters):
    return shockwave_jobs(TABLE, ShockwaveWorkloadParameters(**parameters), seed, gpus=gpus, modes=modes)


def test_the_same_seed_gives_the_same_jobs():
    """Another seed gives other jobs."""
    assert drawn(seed=3) == drawn(seed=3)
    assert drawn(seed=3) != drawn(seed=4)


def test_gpus_modes_and_arrivals_have_the_shares_of_the_paper():
    """All jobs last 0.2 to 5 hours."""
    submissions = drawn(jobs=3000).submissions
    gpus = Counter(one.job.gpus for one in submissions)
    assert gpus[1] / 3000 == pytest.approx(0.6, abs=0.05)
    assert gpus[2] / 3000 == pytest.approx(0.3, abs=0.05)
    modes = Counter(one.training.mode for one in submissions)
    assert modes[Mode.GNS] / 3000 == pytest.approx(0.5, abs=0.05)
    assert submissions[-1].job.submitted / 3000 == pytest.approx(40.0, rel=0.1)
    hours = [one.training.total / (4.0 * one.job.gpus) / 3600 for one in submissions]
    assert min(hours) >= 0.2 - 1e-3
    assert max(hours) <= 5.0
    assert sum(hour <= 0.2 + 0.2 * 4.8 for hour in hours) / 3000 == pytest.approx(0.72, abs=0.05)


def test_short_jobs_do_not_adapt_like_accordion():
    """They would have hardly any steps left."""
    submissions = drawn(jobs=500, modes={Mode.ACCORDION: 1.0}).submissions
    static = [one.training.total / (4.0 * one.job.gpus) for one in submissions if one.training.mode is Mode.STATIC]
    assert static
    assert max(static) < 1000


def test_jobs_have_several_batch_sizes():
    """The batch sizes are in the table, and of one model family."""
    trainings = [one.training for one in drawn(jobs=200).submissions]
    assert any(len(training.regimes) > 1 for training in trainings)
    assert all(regime.batch in BATCHES[t.family] for t in trainings for regime in t.regimes)
    assert all(t.family in FAMILIES for t in trainings)


def test_a_table_without_the_models_is_refused():
    """The error names the number and the type of the GPUs."""
    with pytest.raises(GeneratorError, match="8 GPUs of type 'k80'"):
        drawn(gpus={8: 1.0}, reference="k80")
