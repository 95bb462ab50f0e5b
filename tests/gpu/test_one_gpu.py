"""The shim where it computes on a real GPU, with NCCL; one is enough."""

import os
import signal

import pytest
import torch

pytestmark = pytest.mark.shim

EXACT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # without which cuBLAS may sum in another order
STEPS = 100  # of the whole training


def final(place):
    """All tensors and numbers that the training ended with, by their way through the states."""
    states = torch.load(place.directory / "final.pt", map_location="cpu")
    flat, _ = torch.utils._pytree.tree_flatten_with_path(states)
    return {torch.utils._pytree.keystr(way): value for way, value in flat}


def assert_same(found, expected):
    """Equal to the last bit."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.fixture(scope="module")
def undisturbed(workplace):
    """What a training ends with that nobody stops, by its kind."""
    done = {}

    def train(kind):
        if kind not in done:
            place = workplace()
            trainers = place.launch(1, "--kind", kind, **EXACT)
            assert trainers.wait() == [0], trainers.output()
            assert "cuda" in trainers.output()
            done[kind] = final(place)
        return done[kind]

    return train


@pytest.mark.parametrize("kind", ["whole", "sharded", "compiled"])
def test_a_stopped_training_ends_as_if_nobody_had_stopped_it(workplace, undisturbed, kind):
    """Weights, moments and the scaler are the same to the last bit, dropout on the GPU and half precision included."""
    place = workplace()
    for halt in (30, 60):
        trainers = place.launch(1, "--kind", kind, "--halt", halt, **EXACT)
        with place.halted(len(place.started), halt):
            trainers.signal(0)
        assert trainers.wait() == [85], trainers.output()
    assert place.launch(1, "--kind", kind, **EXACT).wait() == [0]
    assert place.surviving() == {epoch: list(range(1600)) for epoch in range(4)}
    assert_same(final(place), undisturbed(kind))


@pytest.mark.parametrize("kind", ["whole", "sharded"])
def test_a_checkpoint_beside_the_training_is_of_one_moment(workplace, undisturbed, kind):
    """A training that is killed during background checkpoints, while the device lags behind, reaches the same end."""
    place = workplace()
    options = "--kind", kind, "--checkpoint-every", 0, "--lag", "0.01", "--pause", "0.02"
    for number in (1, 2):
        trainers = place.launch(1, *options, **EXACT)
        place.wait_for_step(number, 30 * number)
        trainers.kill()
    assert place.launch(1, "--kind", kind, **EXACT).wait() == [0]
    assert place.report(2)[0]["step"] > 0
    assert_same(final(place), undisturbed(kind))


def test_seconds_are_the_devices(workplace):
    """The reported seconds of steps are those on the device, though the host is far ahead of it."""
    place = workplace()
    trainers = place.launch(1, "--lag", "0.05", "--epochs", 8)
    assert trainers.wait() == [0], trainers.output()
    lines = [line for line in place.report(1) if line["kind"] == "steps"]
    assert sum(line["steps"] for line in lines) == 2 * STEPS
    # The device's clock may be somewhat faster than the rate that `--lag` is computed by; nothing makes it sleep less.
    assert sum(line["seconds"] for line in lines) > 0.5 * 0.05 * 2 * STEPS
    for line in lines[1:]:  # the first has the start of kernels in it
        assert line["seconds"] > 0.5 * 0.05 * line["steps"]


def test_peak_is_of_the_device(workplace):
    """The reported memory is the GPU's: the weights, their gradients and Adam's two moments."""
    place = workplace()
    ballast = 2**28
    trainers = place.launch(1, "--ballast", ballast, "--epochs", 1)
    assert trainers.wait() == [0], trainers.output()
    peak = next(line["peak_bytes"] for line in reversed(place.report(1)) if line["kind"] == "steps")
    assert 4 * ballast < peak < 10 * ballast


@pytest.mark.parametrize("first", ["gpu", "cpu"])
def test_a_checkpoint_goes_where_the_next_run_computes(workplace, first):
    """A checkpoint of a GPU resumes on a CPU, and the reverse; every sample is trained once."""
    place = workplace()
    hidden = {"gpu": {}, "cpu": {"CUDA_VISIBLE_DEVICES": ""}}
    second = "cpu" if first == "gpu" else "gpu"
    trainers = place.launch(1, "--halt", 30, **hidden[first])
    with place.halted(1, 30):
        trainers.signal(0)
    assert trainers.wait() == [85], trainers.output()
    trainers = place.launch(1, **hidden[second])
    assert trainers.wait() == [0], trainers.output()
    assert trainers.output().splitlines()[-1].startswith("cuda" if second == "gpu" else "cpu")
    assert place.surviving() == {epoch: list(range(1600)) for epoch in range(4)}


def test_two_jobs_take_turns(workplace, undisturbed):
    """Two trainings take turns on a GPU; a suspended one keeps its state in the GPU's memory, and both end as usual."""
    places = [workplace(), workplace()]
    jobs = [place.launch(1, "--halt", 10, "--pause", "0.02", **EXACT) for place in places]
    for place in places:
        place.wait_for_step(1, 10)
    for rests, works in ((0, 1), (1, 0), (0, 1)):
        os.killpg(jobs[rests].processes[0].pid, signal.SIGSTOP)
        (places[works].directory / "go-10").touch()
        before, still = places[works].last_step(1), places[rests].last_step(1)
        places[works].wait_for_step(1, min(before + 15, STEPS))
        assert places[rests].last_step(1) <= still + 1
        os.killpg(jobs[rests].processes[0].pid, signal.SIGCONT)
    (places[0].directory / "go-10").touch()
    for place, trainers in zip(places, jobs, strict=True):
        assert trainers.wait() == [0], trainers.output()
        assert_same(final(place), undisturbed("whole"))


def test_two_ranks_on_one_gpu_are_refused(workplace):
    """Two ranks on one GPU are an error in words; NCCL would hang, or fail with a cryptic error."""
    trainers = workplace().launch(2, CUDA_VISIBLE_DEVICES="0")
    assert 0 not in trainers.wait()
    assert "share one GPU" in trainers.output(0) + trainers.output(1)
