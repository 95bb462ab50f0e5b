"""The process group that the shim makes for a script."""

import gc
import os
import weakref
from unittest.mock import patch

import torch.distributed as dist

from trainer_shim.environment.world import World
from trainer_shim.process_groups.script_group import ScriptGroup


def test_a_group_lives_on_when_the_script_destroys_it():
    """Torch's destructor of a gloo group can hang where a script frees its model right after the last collective."""
    with patch.dict(os.environ):
        group = ScriptGroup(World(0, 1, 0, None))
    kept = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    gc.collect()
    assert kept() is not None
    group.close()
