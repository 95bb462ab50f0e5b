"""What the tests on a real GPU share. They are run by name (`make gpu`); without a GPU they are skipped."""

from pathlib import Path

import pytest
import torch

from tests.fork_server import ForkServer
from tests.shim.conftest import workplaces


def pytest_collection_modifyitems(items):
    """Skip what needs a GPU where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="there is no GPU here"))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Make workplaces of trainers that use the GPU; the trainers that still run in them are killed at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # a process that has initialized CUDA cannot fork trainers
        script = Path(__file__).with_name("train.py")
        with ForkServer() as server, workplaces(tmp_path_factory, script=script, server=server) as make:
            yield make
