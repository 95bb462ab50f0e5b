from __future__ import annotations

import math

import pytest

from metasched.core.model import Placement, Snapshot
from metasched.scheduling.engine import run_round
from metasched.throughput.scaling_curve import Curve, ScalingTraining, training_of_run
from policies.baselines.isolated import Isolated
from policies.gavel.policies import GavelLas
from tests.unit.gavel_tables import cluster, known_job


def place(gpus, gpu_type="a100"):
    return Placement(("n0",), gpus, gpu_type)


def test_a_curve_is_linear_between_two_sizes_at_which_the_job_runs():
    """Measured sizes have their measured speed."""
    curve = Curve(((1, 10.0), (2, 18.0), (4, 30.0)))
    assert curve.at(2) == 18.0
    assert curve.at(3) == pytest.approx(24.0)


def test_speeds_beyond_the_measured_sizes_are_not_known():
    """Neither on more or fewer GPUs, nor between a size at which the job runs and one at which it does not."""
    curve = Curve(((2, 18.0), (4, 30.0), (8, 0.0)))
    assert curve.at(1) is None
    assert curve.at(16) is None
    assert curve.at(6) is None
    assert curve.at(8) == 0.0


def test_a_training_follows_the_curve_of_its_gpu_type():
    """The pace is constant to the end; on a type without a curve the job does not run."""
    training = ScalingTraining(100, {"a100": Curve(((1, 10.0), (2, 18.0)))})
    assert training.pace(5.0, place(2)) == (18.0, math.inf)
    assert training.pace(5.0, place(2, "v100")).steps_per_second == 0.0
    assert training.pace(5.0, place(2), training).steps_per_second == 9.0
    assert training.known(0) is training.known(50)
    assert training.known(0).steps_per_second("v100", (2,)) is None


def test_a_rigid_run_has_its_speed_on_its_own_size_only():
    """A step is a second of the run; at other sizes the speed is not known."""
    training = training_of_run(300.0, 4)
    assert training.total == 300.0
    assert training.pace(0, place(4)).steps_per_second == 1.0
    assert training.known(0).steps_per_second("any", (2, 2)) == 1.0
    assert training.known(0).steps_per_second("any", (2,)) is None


def test_a_power_law_is_relative_to_the_run():
    """A linear one halves the time on twice the GPUs; a smaller exponent gains less."""
    assert training_of_run(300.0, 4, 1.0).pace(0, place(8)).steps_per_second == 2.0
    assert training_of_run(300.0, 4, 0.5).pace(0, place(1)).steps_per_second == 0.5


@pytest.mark.parametrize("policy", [Isolated(), GavelLas()], ids=lambda policy: policy.name)
@pytest.mark.parametrize("exponent", [None, 0.8])
def test_time_share_policies_schedule_jobs_without_a_model(policy, exponent):
    """Such jobs come from traces."""
    jobs = tuple(known_job(uid).evolve(speed=training_of_run(60.0, 1, exponent).known(0.0)) for uid in "ab")
    for sharing in (False, True):
        view = Snapshot(0.0, 1, 60.0, cluster(a100=2), jobs, sharing=sharing)
        assert run_round(view, policy, None).targets.keys() == {"a", "b"}
