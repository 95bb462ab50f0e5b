"""The global batch of a checkpoint, and consent to another one."""

import pytest

from trainer_shim.checkpointing.batch_record import BatchRecord, check_batch_change
from trainer_shim.errors import CheckpointError


def check(before, now, batch_change=None, **environ):
    check_batch_change(before and BatchRecord(*before), BatchRecord(*now), batch_change, environ, "x.pt")


def test_the_same_batch():
    """The same global batch at any world size, and a checkpoint of an earlier version, are fine."""
    check((16, 2), (16, 5))
    check(None, (16, 5))


def test_a_change_without_consent():
    """Another batch is refused, in words that name both batches and the ways to consent."""
    with pytest.raises(CheckpointError, match=r"x\.pt: made with global_batch 16 on 2 ranks, .* has 40 on 2") as caught:
        check((16, 2), (40, 2))
    assert "pass ctx.loader(..., batch_change=16)" in str(caught.value)
    assert "TRAINER_SHIM_BATCH_CHANGE=16" in str(caught.value)
    assert "for each GPU" not in str(caught.value)


def test_a_batch_per_gpu_is_recognised():
    """A batch that grows with the number of ranks is named as such, with the fix."""
    with pytest.raises(CheckpointError, match=r"a batch for each GPU \(8\) times the number of ranks") as caught:
        check((16, 2), (40, 5))
    assert "global_batch=16, and max_per_gpu=8" in str(caught.value)


def test_consent():
    """Consent names the earlier batch, so that it covers no other change."""
    check((16, 2), (40, 2), 16)
    check((16, 2), (40, 2), TRAINER_SHIM_BATCH_CHANGE="16")
    with pytest.raises(CheckpointError):
        check((40, 2), (64, 2), 16)
