"""Batches that change while a training runs."""

import importlib.util
import itertools
import json
import math
import signal
import sys
from pathlib import Path

import pytest
import torch

from trainer_shim.adaptive_batch.goodput import gain

pytestmark = pytest.mark.shim

SCRIPT = Path(__file__).with_name("train_adaptive.py")
SAMPLES, M0, EPOCHS, STEPS_PER_EPOCH = 203, 10, 6, 21
CONSENT = ("--max-batch", 60, "--max-per-gpu", 12, "--lr-scale")
THETA = [0.01, 0.0001, 0.01, 0.0, 0.01, 0.0, 1.0]


def batch(plan, per_gpu=None, accumulation=None, theta=None):
    """The lease's key."""
    return {"plan": plan, "per_gpu": per_gpu, "accumulation": accumulation, "theta": theta}


@pytest.fixture(scope="module")
def workplace(workplace):
    """Make workplaces whose trainers may adapt their batch."""

    def make():
        place = workplace()
        place.script = SCRIPT
        return place

    return make


def steps(place, *generations):
    """The surviving steps, each with the samples of all ranks: those that later generations built on."""
    begins = [place.report(number, adaptive=True)[0]["step"] for number in generations] + [sys.maxsize]
    found = {}
    for number, end in zip(generations, begins[1:], strict=True):
        for line in sorted(place.trained(number), key=lambda line: (line["step"], line["rank"])):
            if line["step"] <= end:
                step = found.setdefault(line["step"], line | {"indices": []})
                step["indices"] = step["indices"] + line["indices"]
                assert step | {"indices": None, "rank": 0} == line | {"indices": None, "rank": 0}
    assert sorted(found) == list(range(1, len(found) + 1))
    return [found[number] for number in sorted(found)]


def by_hand(trained):
    """The parameters by plain torch, in one process, from the batches, rates and progress that were written down."""
    spec = importlib.util.spec_from_file_location("train_adaptive", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data, (net, optimizer, schedule) = module.Numbers(SAMPLES), module.make_training()
    for step in trained:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(data.features[step["indices"]]), data.targets[step["indices"]]).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        base = optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] = base * (max(step["batch"], M0) / M0) ** 0.5
        assert step["rate"] == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        optimizer.param_groups[0]["lr"] = base
        end = EPOCHS * STEPS_PER_EPOCH
        for _ in range(int(min(end, step["progress"])) - int(min(end, step["before"]))):
            schedule.step()
    return net.state_dict()


def assert_every_sample_once(trained):
    """Each whole pass over the data trains every sample once, and the last pass none twice."""
    passes = {}
    for step in trained:
        passes.setdefault(step["data_pass"], []).extend(step["indices"])
    assert sorted(passes) == list(range(len(passes)))
    for number, indices in passes.items():
        whole = number < len(passes) - 1
        assert len(indices) == len(set(indices))
        assert not whole or len(indices) == SAMPLES
    return len(passes)


@pytest.fixture(scope="module")
def journey(workplace):
    """A job whose batch the lease changes six times, on 1, 2 and 3 GPUs, with 2, 0 and 2 loader workers, and a kill."""
    place = workplace()
    job = (*CONSENT, "sqrt", "--epochs", EPOCHS)
    place.write_lease(1, batch=batch(0))
    first = place.launch(1, *job, "--workers", 2, "--halt", 4, "--halt", 24, run=1)
    with place.halted(1, 4):
        place.write_lease(1, batch=batch(1, 12, 2))
    with place.halted(1, 24):
        first.signal(0)
    assert first.wait() == [85], first.output()

    place.write_lease(2, batch=batch(2, 10, 3))
    second = place.launch(2, *job, "--halt", 28, "--halt", 34, "--checkpoint-every", 0, run=2)
    with place.halted(2, 28):
        place.write_lease(2, batch=batch(3, 4, 2))
    for rank in (0, 1):
        place.wait_for(lambda rank=rank: place.last_step(2, rank) >= 34, "step 34")
        second.signal(rank, signal.SIGKILL)
    assert second.wait() == [-signal.SIGKILL] * 2

    (place.directory / "go-34").touch()
    place.write_lease(3, batch=batch(4, 7, 1))
    third = place.launch(3, *job, "--workers", 2, "--halt", 36, "--halt", 38, run=3)
    with place.halted(3, 36):
        place.write_lease(3, batch=batch(5, 99, 1))  # beyond the limits
    with place.halted(3, 38):
        place.write_lease(3, batch=batch(6, 7, 3))  # an even split has 63 samples, and 60 are allowed
    assert third.wait() == [0] * 3, third.output()
    return place


def test_no_sample_is_lost_or_repeated(journey):
    """Through all plans, sizes, stops and a kill, each pass over the data trains every sample once."""
    assert assert_every_sample_once(steps(journey, 1, 2, 3)) > EPOCHS


def test_a_plan_by_lease_trains_like_a_plan_by_hand(journey):
    """The parameters are those of a plain training with the same batches, learning rates and schedule."""
    found = torch.load(journey.directory / "final.pt")
    torch.testing.assert_close(found, dict(by_hand(steps(journey, 1, 2, 3))), rtol=0, atol=1e-12)


def test_the_batches_are_those_of_the_plans(journey):
    """Each plan is used without a restart, soon after the lease has it, and reported with its number."""
    sizes = [step["full_batch"] for step in steps(journey, 1, 2, 3)]
    assert [size for size, _ in itertools.groupby(sizes)] == [10, 24, 60, 16, 21, 60]
    for generation, plans in [(1, {0: 10, 1: 24}), (2, {2: 60}), (3, {4: 21, 6: 60})]:
        lines = [line for line in journey.report(generation, adaptive=True) if line["kind"] == "steps"]
        assert plans.items() <= {line["plan"]: line["global_batch"] for line in lines}.items()
    assert "plan 5 is not used" in journey.started[2].output()


def test_progress_and_epochs(journey):
    """Progress is between the steps and their batches over M0, and an epoch ends with the steps at M0 of a pass."""
    trained = steps(journey, 1, 2, 3)
    for step, following in zip(trained, [*trained[1:], None], strict=True):
        assert 1 - 1e-9 <= step["progress"] - step["before"] <= max(1.0, step["batch"] / M0) + 1e-9
        over = step["progress"] >= (step["epoch"] + 1) * STEPS_PER_EPOCH
        assert over == (following is None or following["epoch"] == step["epoch"] + 1)
    assert len(trained) < EPOCHS * STEPS_PER_EPOCH
    lines = journey.report(3, adaptive=True)
    declared = lines[1]
    assert (declared["total_steps"], declared["global_batch"]) == (EPOCHS * STEPS_PER_EPOCH, M0)
    assert (declared["first_batch"], declared["max_batch"], declared["max_per_gpu"]) == (M0, 60, 12)
    assert (declared["adaptive"], declared["lr_scale"], declared["min_per_gpu"]) == (True, "sqrt", 1)
    last = [line for line in lines if line["kind"] == "steps"][-1]
    assert last["progress"] == trained[-1]["progress"] >= EPOCHS * STEPS_PER_EPOCH
    assert (lines[-1]["kind"], lines[-1]["progress"]) == ("end", last["progress"])
    (stop,) = (line for line in journey.report(1, adaptive=True) if line["kind"] == "stop")
    starts = [journey.report(number, adaptive=True)[0] for number in (1, 2, 3)]
    assert [line["progress"] for line in starts[:2]] == [0.0, stop["progress"]]
    assert starts[2]["progress"] == trained[starts[2]["step"] - 1]["progress"]
    assert last["grad_square"] >= 0
    assert last["grad_variance"] > 0


@pytest.mark.parametrize(("size", "workers"), [(2, 0), (1, 2)])
def test_stops_change_no_bit(workplace, size, workers):
    """A training with three plans, a stop and a kill equals the undisturbed one with the same plan in each step."""
    place = workplace()
    job = (*CONSENT, "adascale", "--epochs", EPOCHS, "--workers", workers)
    place.write_lease(1, batch=batch(0))
    first = place.launch(size, *job, "--halt", 4, "--halt", 20, run=1)
    with place.halted(1, 4):
        place.write_lease(1, batch=batch(1, 12, 1))
    with place.halted(1, 20):
        first.signal(0)
    assert first.wait() == [85] * size, first.output()

    place.write_lease(2, batch=batch(1, 12, 1))
    second = place.launch(size, *job, "--halt", 26, "--halt", 34, "--checkpoint-every", 0, run=2)
    with place.halted(2, 26):
        place.write_lease(2, batch=batch(2, 7, 4))
    for rank in range(size):
        place.wait_for(lambda rank=rank: place.last_step(2, rank) >= 34, "step 34")
        second.signal(rank, signal.SIGKILL)
    assert second.wait() == [-signal.SIGKILL] * size

    (place.directory / "go-34").touch()
    place.write_lease(3, batch=batch(2, 7, 4))
    third = place.launch(size, *job, "--halt", 40, run=3)
    with place.halted(3, 40):
        place.write_lease(3, batch=batch(3, 8, 2))
    assert third.wait() == [0] * size, third.output()
    found = steps(place, 1, 2, 3)
    assert len({step["full_batch"] for step in found}) >= 3

    whole = workplace()
    schedule = whole.directory / "schedule.json"
    schedule.write_text(json.dumps([[step["data_pass"], step["position"], step["plan"]] for step in found]))
    whole.write_lease(1, batch=batch(0))
    trainers = whole.launch(size, *job, "--schedule", schedule, run=1)
    assert trainers.wait() == [0] * size, trainers.output()
    assert steps(whole, 1) == found
    one, other = (torch.load(each.directory / "final.pt") for each in (place, whole))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_without_both_consents_nothing_changes(workplace):
    """The lease's word alone, the script's alone, and neither train alike, bit for bit."""
    parameters = []
    for lease, consent in [(None, ()), (batch(1, 12, 2), ()), (None, (*CONSENT, "adascale"))]:
        place = workplace()
        place.write_lease(1, batch=lease)
        trainers = place.launch(1, *consent, "--epochs", 1, run=1)
        assert trainers.wait() == [0], trainers.output()
        parameters.append(torch.load(place.directory / "final.pt"))
        if not consent:
            lines = place.report(1)
        trained = place.trained(1)
        assert [step["batch"] for step in trained] == [10] * 20 + [3]
        assert [step["progress"] for step in trained] == list(range(1, 22))
        assert ("give ctx.loader(..., max_batch=" in trainers.output()) == (lease is not None)
        assert ("has batch=adaptive" in trainers.output()) == (lease is not None or bool(consent))
    assert all("plan" not in line for line in lines)
    for other in parameters[1:]:
        torch.testing.assert_close(other, parameters[0], rtol=0, atol=0)


def test_a_trainer_tunes_itself(workplace):
    """With a model of the time, a trainer raises its batch by its own noise, and AdaScale's rate is the gain."""
    place = workplace()
    place.write_lease(1, batch=batch(0, theta=THETA))
    trainers = place.launch(2, *CONSENT, "adascale", "--retune", 0.2, "--epochs", 12, "--halt", 60, run=1)
    place.wait_for_step(1, 60)
    place.lease.unlink()  # as where the daemon is dead and the file system stuck
    (place.directory / "go-60").touch()
    assert trainers.wait() == [0, 0], trainers.output()
    trained = steps(place, 1)
    largest = [step for step in trained if step["batch"] > M0]
    assert largest
    for step in largest:
        gained = step["progress"] - step["before"]
        assert step["rate"] / step["base"] == pytest.approx(gained)
        assert 1 <= gained <= step["batch"] / M0 + 1e-9
    assert_every_sample_once(trained)
    lines = [line for line in place.report(1, adaptive=True) if line["kind"] == "steps"]
    last = lines[-1]
    scale = last["grad_variance"] / last["grad_square"] if last["grad_square"] else math.inf
    assert trained[-1]["progress"] - trained[-1]["before"] == pytest.approx(gain(M0, trained[-1]["batch"], scale))
    assert {line["plan"] for line in lines} == {0}


@pytest.mark.parametrize(("rule", "workers", "most"), [("gns", 0, 60), ("accordion", 2, 20)])
def test_a_rule_of_the_script_changes_the_batch_alike_at_every_size_and_restart(workplace, rule, workers, most):
    """On 1, 2 and 3 GPUs, with a stop and a kill in between, each step has the batch of the undisturbed training."""
    job = ("--max-batch", most, "--max-per-gpu", 12, "--lr-scale", "sqrt", "--epochs", EPOCHS, "--adapts", rule)
    whole = workplace()
    trainers = whole.launch(1, *job, run=1)
    assert trainers.wait() == [0], trainers.output()

    place = workplace()
    first = place.launch(2, *job, "--workers", workers, "--halt", 23, run=1)  # step 24 is compared with step 23
    with place.halted(1, 23):
        first.signal(0)
    assert first.wait() == [85] * 2, first.output()
    second = place.launch(3, *job, "--halt", 47, "--checkpoint-every", 0, run=2)
    for rank in range(3):
        place.wait_for(lambda rank=rank: place.last_step(2, rank) >= 47, "step 47")
        second.signal(rank, signal.SIGKILL)
    assert second.wait() == [-signal.SIGKILL] * 3
    (place.directory / "go-47").touch()
    third = place.launch(1, *job, "--workers", workers, run=3)
    assert third.wait() == [0], third.output()

    expected, found = steps(whole, 1), steps(place, 1, 2, 3)
    batches = [batch for batch, _ in itertools.groupby(step["full_batch"] for step in expected)]
    assert len(batches) > 2
    assert place.report(1, adaptive=True)[1]["adapts"] == rule
    for one, other in zip(expected, found, strict=True):
        assert sorted(one["indices"]) == sorted(other["indices"])
        assert [one[key] for key in ("epoch", "full_batch", "rate", "progress")] == pytest.approx(
            [other[key] for key in ("epoch", "full_batch", "rate", "progress")]
        )
    assert_every_sample_once(expected)
    assert expected[-1]["progress"] == EPOCHS * STEPS_PER_EPOCH
    one, other = (torch.load(each.directory / "final.pt") for each in (whole, place))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
