"""The time of an iteration, learnt from reports of several sizes and batches."""

import pytest

from metasched.learning.iteration_learning import IterationLearning
from metasched.store import IterationRecord, Store
from metasched.store.store import MAX_ITERATIONS
from metasched.throughput.iteration_time import IterationParameters

TRUTH = IterationParameters(0.05, 0.002, 0.02, 0.001, 0.06, 0.004, 1.6)
SIZES = [(1, False), (2, False), (4, False), (4, True), (8, True)]


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "m.db") as opened:
        yield opened


def measured(subject="a", gpu_type="v100", truth=TRUTH, at=1.0):
    """One record for each size and two batches, as the true parameters have it."""
    for gpus, multi_node in SIZES:
        for per_gpu, accumulation in ((16, 1), (64, 2)):
            seconds = truth.iteration_seconds(gpus, per_gpu, accumulation, multi_node=multi_node)
            yield IterationRecord(subject, gpu_type, gpus, multi_node, per_gpu, accumulation, seconds, at)


def learn(learning, records):
    for record in records:
        learning.note(record)


def worst_error(found):
    """The largest relative error over sizes and batches that were not measured, too."""
    sizes = [(g, m, b, s) for g, m in [*SIZES, (16, True)] for b in (16, 32, 128) for s in (1, 2)]
    return max(
        abs(found.iteration_seconds(g, b, s, multi_node=m) / TRUTH.iteration_seconds(g, b, s, multi_node=m) - 1)
        for g, m, b, s in sizes
    )


def test_the_parameters_are_recovered_and_survive_a_restart(store):
    """A daemon that starts anew fits the stored durations."""
    learning = IterationLearning(store)
    assert learning.parameters("a") == {}
    learn(learning, measured())
    for known in (learning, IterationLearning(store)):
        assert worst_error(known.parameters("a")["v100"]) < 0.02


def test_a_fit_is_made_again_where_a_duration_has_changed(store):
    """The same object is returned until then."""
    learning = IterationLearning(store)
    learn(learning, measured())
    before = learning.parameters("a")
    learn(learning, measured())
    assert learning.parameters("a") is before
    learn(learning, measured(truth=TRUTH.scaled(3.0)))
    assert learning.parameters("a")["v100"].pass_seconds(16) > 1.2 * before["v100"].pass_seconds(16)


def test_a_type_without_runs_is_scaled_by_what_other_jobs_showed(store):
    """Job "b" ran on both types, which shows how much slower the second is."""
    learning = IterationLearning(store)
    learn(learning, measured("b"))
    learn(learning, measured("b", "k80", TRUTH.scaled(4.0)))
    learning.parameters("b")
    learn(learning, measured("a"))
    found = learning.parameters("a")
    assert found["k80"].pass_seconds(16) == pytest.approx(4 * found["v100"].pass_seconds(16), rel=0.05)


def test_an_ended_job_without_a_model_is_forgotten(store):
    """Its durations leave the store, too."""
    learning = IterationLearning(store)
    learn(learning, [*measured("a"), *measured("ann/net")])
    learning.parameters("a")
    learning.forget("a")
    assert learning.parameters("a") == {}
    assert {record.subject for record in store.iterations()} == {"ann/net"}


def test_endless_configurations_are_cut(store):
    """A script that changes its batch at every report leaves the latest configurations."""
    for n in range(MAX_ITERATIONS + 20):
        store.set_iteration(
            IterationRecord("a", "v100", 1, multi_node=False, per_gpu=n + 1, accumulation=1, seconds=0.1, at=n)
        )
    kept = store.iterations()
    assert len(kept) == MAX_ITERATIONS
    assert min(record.per_gpu for record in kept) == 21
