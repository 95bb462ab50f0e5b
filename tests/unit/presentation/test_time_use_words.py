"""Sentences on a job's use of time."""

from metasched.presentation.job_explanation import time_use_words
from metasched.store.time_use import TimeUse


def test_only_what_is_known_is_said():
    """A trainer that measures no waits has none in the words; one that reports no steps has no words at all."""
    assert time_use_words(TimeUse(60.0, 60.0, None, None, None, None, None)) == []
    assert time_use_words(TimeUse(600.0, 60.0, 500.0, None, None, None, None)) == [
        "Of 10 min on its resources it trained 8 min 20 s; starts took 1 min."
    ]
    *_, memory = time_use_words(TimeUse(600.0, 60.0, 400.0, 50.0, 20.0, 5.0, 2**31))
    assert memory == "Its rank 0 used at most 2.0 GiB of memory."
