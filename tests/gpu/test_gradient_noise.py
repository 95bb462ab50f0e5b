"""The gradient noise on a GPU: what it keeps in memory, what it waits for, and what it measures."""

import pytest
import torch

from contrib.benchmarks.gradient_noise import BATCH, OPTIMIZERS, PASSES, Training, peak_bytes, resnet18

pytestmark = pytest.mark.shim

each_training = pytest.mark.parametrize(
    ("optimizer", "max_per_gpu"), [(name, size) for name in OPTIMIZERS for size in PASSES.values()]
)


@each_training
def test_memory_of_a_measurement(optimizer, max_per_gpu):
    """The memory of a training whose noise is measured has at most one copy of the gradients more."""
    gradients = sum(each.numel() * each.element_size() for each in resnet18().parameters())
    plain = peak_bytes(optimizer, max_per_gpu)
    assert peak_bytes(optimizer, max_per_gpu, None) < plain + 1.1 * gradients


@each_training
def test_joined_gradients_have_the_measurement_of_single_ones(optimizer, max_per_gpu):
    """Gradients measured as few tensors give what those of each parameter give."""
    training = Training(optimizer, max_per_gpu, 0, None)
    for _ in range(2):
        single, joined = training.run_block()
        assert single is not None
        # two large numbers may differ by little: the estimate of the signal is as precise as that of the noise
        assert joined == pytest.approx(single, rel=1e-3, abs=1e-3 * single.grad_variance / BATCH)


@each_training
def test_the_host_waits_once(optimizer, max_per_gpu):
    """The host waits for the GPU where a measurement is read, and nowhere else in a step."""
    training = Training(optimizer, max_per_gpu, None)
    training.run_block()
    before = torch.cuda.get_sync_debug_mode()
    for _ in range(10):
        torch.cuda.set_sync_debug_mode("error")
        try:
            training.compute_gradients()
        finally:
            torch.cuda.set_sync_debug_mode(before)
        (found,) = training.finish_step()
    assert found is not None
