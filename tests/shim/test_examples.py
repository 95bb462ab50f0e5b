"""The examples resume at other world sizes with the result of the undisturbed run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.shim

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["vision", "language_model", "fsdp"])
def test_an_example_resumes_at_other_sizes(name):
    """Each example is stopped twice and resumed at another size, and has the losses of its undisturbed run."""
    script = ROOT / "contrib" / "examples" / f"{name}.py"
    command = [sys.executable, "-m", "trainer_shim.rehearse", "--sizes", "1,3,2", "--kills", "0"]
    command += ["--tolerance", "3.5e-4", "--json"]  # as for float32; a sharded checkpoint does not tell
    environ = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [*command, str(script), "--small"], env=environ, capture_output=True, text=True, timeout=280, check=False
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    assert json.loads(run.stdout)["result"] == "equal"
