"""The choice of a batch plan by the lease, and by the trainer itself."""

import pytest

from metasched.throughput import goodput
from trainer_shim.adaptive_batch.batch_tuner import HYSTERESIS, RETUNE_SECONDS, BatchTuner, NumberedPlan
from trainer_shim.adaptive_batch.goodput import PlanLimits
from trainer_shim.batch import plan_batch
from trainer_shim.preemption.lease import LeaseBatch

THETA = (0.05, 0.002, 0.03, 0.004, 0.2, 0.01, 2.0)


class Trainer:
    """A tuner of a training on GPUs, with a clock."""

    def __init__(self, gpus=2, limits=(32, 512, 64), noise=1000.0):
        self.now = 0.0
        self.gpus = gpus
        self.noise = noise
        self.tuner = BatchTuner(PlanLimits(*limits), gpus, lambda: self.now)
        self.present = self.tuner.first_plan(32)

    def ask(self, lease, *, may_grow=True):
        """The proposal, which is then the present plan."""
        self.tuner.update(lease, self.noise, self.present, may_grow=may_grow)
        found, self.tuner.proposal = self.tuner.proposal, None
        self.present = found.plan if found else self.present
        return found


def lease(plan, per_gpu=None, accumulation=None, theta=None):
    return LeaseBatch(plan, per_gpu, accumulation, theta, several_nodes=False)


def test_the_plan_of_the_lease_counts_once():
    """A plan is proposed when its number is new; the same number changes nothing, whatever the trainer did since."""
    trainer = Trainer()
    assert trainer.ask(None) is None
    assert trainer.ask(lease(0)) is None
    assert trainer.ask(lease(3, 32, 2)) == NumberedPlan(3, plan_batch(128, 2, 32))
    assert trainer.ask(lease(3, 32, 2)) is None
    assert trainer.ask(lease(4, 16, 1)) == NumberedPlan(4, plan_batch(32, 2, 16))


@pytest.mark.parametrize(("per_gpu", "accumulation"), [(65, 1), (64, 5), (15, 1), (1, 8), (10**30, 10**30)], ids=str)
def test_a_plan_beyond_the_limits(per_gpu, accumulation, caplog):
    """The plan is not used, one warning names it and the limits, and the next plan counts."""
    trainer = Trainer()
    for _ in range(2):
        assert trainer.ask(lease(3, per_gpu, accumulation)) is None
    assert len(caplog.records) == 1
    assert "plan 3 is not used" in caplog.text
    assert "batches from 32 to 512 and 64 samples on a GPU" in caplog.text
    assert trainer.ask(lease(4, 32, 1)).number == 4


def test_an_even_plan_may_exceed_the_limit_by_its_rounding():
    """Five GPUs x 7 samples are one sample more than 34: the last GPU has one less."""
    trainer = Trainer(gpus=5, limits=(32, 34, 64))
    assert trainer.ask(lease(1, 7, 1)).plan == plan_batch(34, 5, 7)


def test_the_trainer_tunes_between_the_plans():
    """Half a minute after the last plan, it proposes the plan of the highest goodput, and then rests as long."""
    trainer = Trainer(noise=100.0)
    assert trainer.ask(lease(1, 16, 1, THETA)).number == 1
    trainer.now = RETUNE_SECONDS - 1
    assert trainer.ask(lease(1, 16, 1, THETA)) is None
    trainer.now = RETUNE_SECONDS
    found = trainer.ask(lease(1, 16, 1, THETA))
    assert found.number == 0
    assert 32 < found.plan.global_batch <= 512
    trainer.noise = 1e6
    trainer.now += RETUNE_SECONDS - 1
    assert trainer.ask(lease(1, 16, 1, THETA)) is None
    trainer.now += 1
    assert trainer.ask(lease(1, 16, 1, THETA)).plan.global_batch > found.plan.global_batch


def test_a_small_gain_changes_nothing():
    """A plan that is better by less than the hysteresis is not proposed; the scheduler has the same hysteresis."""
    trainer = Trainer()
    trainer.now = RETUNE_SECONDS
    best = trainer.ask(lease(0, theta=THETA)).plan
    trainer.present = plan_batch(best.global_batch - 2, 2, 64)  # one sample less on each GPU
    trainer.now = 2 * RETUNE_SECONDS
    assert HYSTERESIS == goodput.HYSTERESIS > 0.01
    assert trainer.ask(lease(0, theta=THETA)) is None


@pytest.mark.parametrize(("theta", "noise"), [(None, 1000.0), (THETA, None)])
def test_no_growth_in_ignorance(theta, noise):
    """Without a model of the time, or without a noise scale, the trainer proposes nothing."""
    trainer = Trainer(noise=noise)
    trainer.now = RETUNE_SECONDS
    assert trainer.ask(lease(0, theta=theta)) is None


def test_no_growth_where_it_is_not_allowed():
    """A training that must not grow returns to M0, and stays there."""
    trainer = Trainer()
    trainer.ask(lease(1, 64, 1))
    assert trainer.present.global_batch == 128
    assert trainer.ask(lease(2, 64, 2), may_grow=False) == NumberedPlan(0, plan_batch(32, 2, 64))
    assert trainer.ask(lease(2, 64, 2), may_grow=False) is None


def test_the_first_plan():
    """A resumed batch is split anew, within the limits; more ranks than M0 have one sample each."""
    assert Trainer().tuner.first_plan(100) == plan_batch(100, 2, 64)
    assert Trainer().tuner.first_plan(1000) == plan_batch(512, 2, 64)
    assert Trainer(gpus=48).tuner.first_plan(32) == plan_batch(48, 48, 64)
