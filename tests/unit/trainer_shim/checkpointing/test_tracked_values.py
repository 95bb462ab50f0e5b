import math

import trainer_shim


def test_values_are_restored():
    """The values of the saved state replace the initial ones; a value that the state lacks keeps its own."""
    saved = trainer_shim.Values(loss=0.5, patience=1).state_dict()
    best = trainer_shim.Values(loss=math.inf, patience=3, epoch=None)
    best.load_state_dict(saved)
    assert (best.loss, best.patience, best.epoch) == (0.5, 1, None)


def test_a_state_is_no_view_of_the_values():
    """A state that was taken earlier does not change with the values, since a checkpoint is written later."""
    best = trainer_shim.Values(loss=1.0)
    saved = best.state_dict()
    best.loss = 0.0
    assert saved == {"loss": 1.0}
