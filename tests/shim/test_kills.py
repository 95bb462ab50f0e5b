"""A few of the kills of `make test-kills`, which strikes hundreds of times."""

import pytest

from tests.kills import local

KILLS = 6


@pytest.mark.timeout(600)
def test_repeated_kills_do_not_change_the_training(server, tmp_path):
    """A killed job resumes from its last complete checkpoint, superseded trainers write nothing, no sample is lost."""
    kills, wrong, facts = local.campaign(server, tmp_path, KILLS, seed=5)
    assert wrong == []
    assert len(kills) == KILLS
    assert facts["aborts"] == 0
