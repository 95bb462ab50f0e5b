"""A few of the kills of `make test-kills`, which strikes hundreds of times."""

import pytest

from tests.kills import local
from tests.kills.nursery import Nursery

KILLS = 6


@pytest.mark.timeout(600)
def test_a_training_that_is_killed_again_and_again_is_as_if_nothing_had_happened(tmp_path):
    """A killed job resumes from its last complete checkpoint, superseded trainers write nothing, no sample is lost."""
    with Nursery() as nursery:
        kills, wrong, facts = local.campaign(nursery, tmp_path, KILLS, seed=5)
    assert wrong == []
    assert len(kills) == KILLS
    assert facts["aborts"] == 0
