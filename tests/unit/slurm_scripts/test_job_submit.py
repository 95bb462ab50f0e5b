import re
from pathlib import Path

import pytest

from metasched.slurm.errors import TagError
from metasched.slurm.tags import KEYS

PLUGIN = Path(__file__).parents[3] / "slurm_scripts" / "job_submit.lua"


def words(pattern):
    """The quoted words of a list in the plugin."""
    (listed,) = re.findall(pattern, PLUGIN.read_text(), re.MULTILINE | re.DOTALL)
    return re.findall(r'"(\w+)"', listed)


def test_the_plugin_knows_the_keys_of_the_tag():
    """A key that the daemon reads is not told to be wrong at submission, and the other way round."""
    assert words(r"^local KEYS = \{(.*?)\}") == list(KEYS)


@pytest.mark.parametrize("key", ["preempt", "trials", "batch", "adapts"])
def test_the_plugin_knows_the_values_that_are_words(key):
    """Each word is a value for the daemon, and no other word is."""
    listed = words(rf"^  {key} = \{{(.*?)\}}")
    assert len({repr(KEYS[key](f"{key}={word}", word)) for word in listed}) == len(listed)
    with pytest.raises(TagError) as refused:
        KEYS[key](f"{key}=x", "x")
    assert all(word in str(refused.value) for word in listed)


def test_the_plugin_refuses_no_whole_number_of_the_daemon():
    """Each of its keys takes 1, and no 0."""
    listed = words(r"^local WHOLE = \{(.*?)\}")
    assert listed
    for key in listed:
        assert KEYS[key](f"{key}=1", "1") == 1
        with pytest.raises(TagError):
            KEYS[key](f"{key}=0", "0")
