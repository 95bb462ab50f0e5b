"""Schedules that follow the progress."""

import pytest
import torch

from trainer_shim.adaptive_batch.schedule_steps import ScheduleSteps


@pytest.fixture
def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(()))], lr=1.0)


def run(optimizer, schedule, gains, last=1000.0, every=1):
    """Step the schedule as a script does, with these gains of the steps; returns the learning rates."""
    steps, progress, rates = ScheduleSteps([schedule, optimizer], last), 0.0, []
    for number, gained in enumerate(gains, 1):
        optimizer.step()
        if number % every == 0:
            schedule.step()
        steps.follow(progress, progress + gained)
        progress += gained
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def test_one_step_at_m0_is_one_step(optimizer):
    """Without growth nothing changes."""
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    assert run(optimizer, schedule, [1.0] * 5) == [1, 0.5, 0.5, 0.25, 0.25]


def test_a_larger_gain_is_several_steps(optimizer):
    """The schedule's steps are the whole steps of the progress, whose fractions are not lost."""
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 100 - step)
    assert run(optimizer, schedule, [2.5, 2.5, 1.0, 3.0]) == [98, 95, 94, 91]


def test_the_end(optimizer):
    """A schedule of a fixed length makes no step beyond the end of the training."""
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=11)
    run(optimizer, schedule, [4.0, 4.0, 4.0], last=10.0)
    assert schedule.last_epoch == 10


def test_schedules_that_are_not_stepped_by_step(optimizer):
    """A schedule that the script has not stepped, and one that follows a metric, make no further steps."""
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    assert run(optimizer, schedule, [4.0, 4.0], every=10) == [1, 1]
    metric = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    ScheduleSteps([metric], 100.0).follow(0.0, 5.0)
    assert metric.last_epoch == 0
