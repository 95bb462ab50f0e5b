"""The record of a vote."""

import pytest

from trainer_shim.preemption.stop_requests import CAUSES, StopRequests
from trainer_shim.session.vote import Vote


def test_a_sum_of_votes_is_a_vote():
    """Packed votes can be added, and the sum says how many ranks have set a flag."""
    first = Vote(mailbox=1, report_due=1, proposed_interval=4)
    second = Vote(sigterm=1, report_due=True, data_late=True)
    assert Vote.unpack(first.pack() + second.pack()) == Vote(
        mailbox=1, sigterm=1, report_due=2, proposed_interval=4, data_late=1
    )


@pytest.mark.parametrize("number", range(len(CAUSES)))
def test_the_strongest_cause_is_agreed_on(number):
    """The agreed cause is the first of CAUSES that any rank has voted for."""
    vote = Vote(**dict.fromkeys(CAUSES[number:], 2))
    assert vote.stop_cause == CAUSES[number]


def test_no_cause():
    """Without a stop request the training continues, whatever else is voted on."""
    assert Vote(urgent=1, save_due=1).stop_cause is None


def test_a_rank_votes_for_its_own_requests():
    """The requests of a process, and whether they are urgent, are in its vote; other fields stay."""
    stop = StopRequests()
    stop.request("mailbox")
    stop.request("sigterm")
    stop.urgent = True
    assert Vote(save_due=1).with_requests(stop) == Vote(mailbox=1, sigterm=1, urgent=1, save_due=1)
