"""What several tests of the store share."""

import pytest

from metasched.store import Store


@pytest.fixture
def store(tmp_path):
    """An empty store."""
    with Store.open(tmp_path / "store.sqlite") as opened:
        yield opened
