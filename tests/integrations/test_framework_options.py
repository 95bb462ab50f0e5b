"""What the integrations do before a training begins: options, arguments and the choice of a package."""

import os
import subprocess
import sys

import pytest

from tests.fork_server import BASE
from tests.integrations.conftest import ENVIRON

pytestmark = pytest.mark.shim


def run(directory, code):
    """Run Python code in a process of its own; returns its exit code and output."""
    path = os.pathsep.join([str(directory), ENVIRON["PYTHONPATH"]])
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | BASE | ENVIRON | {"PYTHONPATH": path},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return found.returncode, found.stdout + found.stderr


def test_lightning_options_are_copied_and_the_imported_package_is_taken(tmp_path):
    """LightningCLI may copy the options; with both packages installed, that of the script counts."""
    pytest.importorskip("pytorch_lightning")
    unified = tmp_path / "lightning"
    (unified / "pytorch").mkdir(parents=True)
    (unified / "__init__.py").touch()
    (unified / "pytorch" / "__init__.py").write_text("raise ImportError('the wrong package')")
    code = (
        "import copy, pytorch_lightning as pl\n"
        "from metasched_lightning import ElasticLightning\n"
        "import metasched_lightning\n"
        "assert metasched_lightning.pl is pl\n"
        "shim = ElasticLightning('checkpoints', global_batch=4)\n"
        "options = shim.options(max_epochs=1, logger=False)\n"
        "copied = copy.deepcopy(options)\n"
        "assert copied['plugins'][0] is options['plugins'][0]\n"
        "pl.Trainer(**copied, accelerator='cpu')\n"
    )
    assert run(tmp_path, code)[0] == 0, run(tmp_path, code)[1]


def test_training_arguments_are_not_overridden_in_silence(tmp_path):
    """A user's batch on a GPU is the most at once; an accumulation that does not fit is an error."""
    pytest.importorskip("transformers")
    code = (
        "from transformers import TrainingArguments\n"
        "from metasched_transformers import ElasticCallback\n"
        "from trainer_shim.errors import UsageError\n"
        "def arguments(**own): return TrainingArguments('out', use_cpu=True, **own)\n"
        "def split(args): return args.per_device_train_batch_size, args.gradient_accumulation_steps\n"
        "shim = ElasticCallback('checkpoints', global_batch=64)\n"
        "assert split(shim.apply(arguments(per_device_train_batch_size=16))) == (16, 4)\n"
        "args = shim.apply(arguments())\n"
        "assert split(args)[0] * split(args)[1] == 64\n"
        "assert args.output_dir == str(shim.companion.directory)\n"
        "for more in ({}, {'per_device_train_batch_size': 16}):\n"
        "    try: shim.apply(arguments(gradient_accumulation_steps=3, **more))\n"
        "    except UsageError as error: assert 'gradient_accumulation_steps' in str(error)\n"
        "    else: raise AssertionError(more)\n"
    )
    returned, output = run(tmp_path, code)
    assert returned == 0, output
