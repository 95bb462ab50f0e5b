import csv
import itertools

import numpy as np
import pytest

from metasched.throughput.iteration_fit import MeasuredIteration, fit_iteration, fit_types, mean_error, pass_ratios
from metasched.throughput.iteration_time import IterationParameters
from tests.unit.published import DATA, needs

THETA = IterationParameters(0.05, 0.004, 0.08, 0.01, 0.3, 0.02, 2.5)
PLACED = [(1, False), (2, False), (4, False), (2, True), (8, True), (16, True), (32, True)]
APPLICATIONS = ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"]


def measured(theta, placed=PLACED, per_gpu=(8, 32, 128), accumulation=(1, 2), factor=1.0):
    return [
        MeasuredIteration(k, several, m, a, factor * theta.iteration_seconds(k, m, a, multi_node=several))
        for (k, several), m, a in itertools.product(placed, per_gpu, accumulation)
    ]


@pytest.mark.parametrize(
    "theta",
    [
        THETA,
        THETA._replace(gamma=1.0),
        THETA._replace(gamma=6.0),
        THETA._replace(beta_local=0.0, beta_node=0.0),
        IterationParameters(0.007, 1e-5, 0.003, 0.001, 0.015, 0.0004, 1.2),
    ],
)
def test_the_fit_recovers_the_parameters(theta):
    """Without noise, the parameters that made the measurements are found."""
    found = fit_iteration(measured(theta))
    scale = theta.iteration_seconds(2, 32, 1, multi_node=True)
    assert np.array(found) == pytest.approx(np.array(theta), rel=0.05, abs=0.01 * scale)
    assert mean_error(found, measured(theta)) < 1e-3


def test_noise_of_five_percent_moves_predictions_little():
    """The logarithmic error weights all configurations equally."""
    rng = np.random.default_rng(1)
    noisy = [one._replace(seconds=one.seconds * np.exp(rng.normal(0, 0.05))) for one in measured(THETA)]
    assert mean_error(fit_iteration(noisy), measured(THETA)) < 0.03


def test_measured_passes_tell_pass_and_synchronisation_apart():
    """One placement leaves open what is synchronisation; passes measured by themselves decide it."""
    one = [(4, False)]
    passes = [
        found._replace(pass_seconds=THETA.pass_seconds(found.per_gpu))
        for found in measured(THETA, one, accumulation=[1])
    ]
    found = fit_iteration(passes)
    assert found[:2] == pytest.approx(THETA[:2], rel=0.02)


@pytest.mark.parametrize(
    ("placed", "zero"),
    [
        ([(1, False)], ["alpha_local", "beta_local", "alpha_node", "beta_node"]),
        ([(1, False), (2, False)], ["beta_local", "alpha_node", "beta_node"]),
        ([(1, False), (4, False)], ["beta_local", "alpha_node", "beta_node"]),
        ([(1, False), (2, False), (2, True)], ["beta_local", "beta_node"]),
        ([(1, False), (8, True)], ["alpha_local", "beta_local", "beta_node"]),
        ([(1, False), (2, False), (4, False), (2, True), (8, True)], []),
    ],
)
def test_unexplored_configurations_scale_perfectly(placed, zero):
    """A parameter is 0 until the job has used a configuration that depends on it (section 4.1).

    A retrogression is 0 until the job has used two numbers of GPUs.
    """
    found = fit_iteration(measured(THETA, placed), node_over_local=0.0)._asdict()
    assert [name for name in zero if found[name] != 0.0] == []
    seen = {"alpha_local", "alpha_node"} - set(zero)
    assert all(found[name] > 0 for name in seen)


def test_larger_numbers_of_gpus_on_several_nodes_are_not_expected_to_be_slow():
    """Eight GPUs on two nodes tell nothing of a retrogression, so 16 and 32 synchronise as fast."""
    found = fit_iteration(measured(THETA, [(1, False), (2, False), (4, False), (8, True)]))
    seen = found.sync_seconds(8, multi_node=True)
    assert found.sync_seconds(32, multi_node=True) == seen > 0


def test_several_nodes_are_taken_to_be_slower_than_one():
    """So the public code has it; it ends with the first iteration on several nodes."""
    local = fit_iteration(measured(THETA, [(1, False), (4, False)]))
    assert local[4:6] == pytest.approx([1.1 * local.sync_seconds(4, multi_node=False), 0.0])
    assert fit_iteration(measured(THETA), node_over_local=100.0) == fit_iteration(measured(THETA))


def test_a_job_on_one_gpu_is_expected_to_scale_linearly():
    """The first measurement alone predicts the same iteration time on any number of GPUs."""
    found = fit_iteration([MeasuredIteration(1, multi_node=False, per_gpu=32, accumulation=1, seconds=0.5)])
    assert found.iteration_seconds(64, 32, 1, multi_node=True) == pytest.approx(0.5, rel=1e-4)
    assert found.alpha_grad == pytest.approx(0.25, rel=1e-4)
    assert found.beta_grad * 32 == pytest.approx(0.25, rel=1e-4)


@pytest.mark.parametrize("seconds", [[], [0.0], [-1.0], [float("nan")], [float("inf")]])
def test_durations_that_are_none_are_refused_in_words(seconds):
    """A logarithm of them would be no number."""
    with pytest.raises(ValueError, match="give"):
        fit_iteration([MeasuredIteration(1, False, 32, 1, one) for one in seconds])  # noqa: FBT003


def test_the_fit_is_homogeneous():
    """Iterations in another unit give the same parameters in that unit; likewise samples."""
    found = np.array(fit_iteration(measured(THETA)))
    longer = np.array(fit_iteration(measured(THETA, factor=1e3)))
    assert longer[:-1] == pytest.approx(found[:-1] * 1e3, rel=1e-6)
    assert longer[-1] == pytest.approx(found[-1], rel=1e-6)
    wider = [one._replace(per_gpu=one.per_gpu * 7) for one in measured(THETA)]
    assert fit_iteration(wider).beta_grad == pytest.approx(found[1] / 7, rel=1e-6)


def test_a_type_with_one_gpu_explored_takes_the_synchronisation_of_another_type():
    """Sia's bootstrap: twice as long a pass means twice as long an iteration everywhere."""
    found = fit_types({"a": measured(THETA), "b": measured(THETA.scaled(2.0), [(1, False)])}, {})
    assert found["b"].iteration_seconds(16, 32, 1, multi_node=True) == pytest.approx(
        2.0 * THETA.iteration_seconds(16, 32, 1, multi_node=True), rel=0.02
    )
    assert found["a"] == fit_iteration(measured(THETA))


def test_an_unseen_type_starts_from_the_ratio_of_other_jobs():
    """Its whole iteration is scaled; types of which nothing is known are left out."""
    others = [(8.0, {"a": THETA, "b": THETA.scaled(f)}) for f in (2.0, 3.0, 10.0)]
    ratios = pass_ratios(others)
    assert ratios["a", "b"] == pytest.approx(3.0)
    assert ratios["b", "a"] == pytest.approx(1 / 3)
    found = fit_types({"a": measured(THETA), "c": []}, ratios)
    assert found.keys() == {"a", "b"}
    assert found["b"] == found["a"].scaled(ratios["a", "b"])
    assert fit_types({"a": []}, ratios) == {}


def test_a_type_that_was_explored_as_far_keeps_its_own_fit():
    """A ratio from other jobs does not override the job's own measurements."""
    own = measured(THETA.scaled(5.0))
    assert fit_types({"a": measured(THETA), "b": own}, {("a", "b"): 2.0})["b"] == fit_iteration(own)


@needs("pollux", "traces")
@pytest.mark.parametrize("application", APPLICATIONS)
def test_the_mean_error_on_the_published_placements_is_at_most_ten_percent(application):
    """Section 3.2: across all tasks, the mean error of the fitted model is at most 10 %."""
    with (DATA / "pollux" / "traces" / application / "placements.csv").open() as file:
        rows = [
            MeasuredIteration(
                sum(map(int, row["placement"])),
                len(row["placement"]) > 1,
                int(row["local_bsz"]),
                1,
                float(row["step_time"]),
            )
            for row in csv.DictReader(file)
        ]
    assert mean_error(fit_iteration(rows), rows) <= 0.10
