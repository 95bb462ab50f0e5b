"""The published data, for tests of parity: tests that need it skip where it is not."""

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("METASCHED_DATA", "no-such-folder"))


def needs(*parts):
    """A mark that skips a test where a file or folder of the data is missing."""
    path = DATA.joinpath(*parts)
    return pytest.mark.skipif(not path.exists(), reason=f"METASCHED_DATA names no folder with {'/'.join(parts)}")
