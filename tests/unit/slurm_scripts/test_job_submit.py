import re
from pathlib import Path

from metasched.slurm.tags import KEYS

PLUGIN = Path(__file__).parents[3] / "slurm_scripts" / "job_submit.lua"


def test_the_plugin_knows_the_keys_of_the_tag():
    """A key that the daemon reads is not told to be wrong at submission, and the other way round."""
    (listed,) = re.findall(r"^local KEYS = \{(.*?)\}", PLUGIN.read_text(), re.MULTILINE | re.DOTALL)
    assert re.findall(r'"(\w+)"', listed) == list(KEYS)
