"""How often the ranks vote."""

from hypothesis import given
from hypothesis import strategies as st

from trainer_shim.session.vote_interval import MAX_STEPS, TARGET_SECONDS, VoteInterval


class Ranks:
    """Ranks whose votes carry rank 0's proposal; each has a clock of its own."""

    def __init__(self, size):
        self.each = [VoteInterval() for _ in range(size)]
        self.clocks = [1000.0 * rank for rank in range(size)]

    def boundary(self, seconds, *, ready=True):
        """End a step of `seconds` on rank 0, and of longer times on the other ranks; return whether a vote followed."""
        for rank, interval in enumerate(self.each):
            self.clocks[rank] += seconds * (rank + 1)
            interval.count_step()
        (due,) = {interval.due for interval in self.each}  # all ranks say the same
        if due:
            proposal, *_ = [interval.propose(now) for interval, now in zip(self.each, self.clocks, strict=True)]
            for interval in self.each:
                interval.finish_vote(proposal, ready=ready)
        else:
            for interval in self.each:
                interval.skip_boundary()
        return due

    def votes(self, steps, seconds, **options):
        return sum(self.boundary(seconds, **options) for _ in range(steps))


def test_the_first_steps_are_voted_on():
    """There is a vote at each boundary until the duration of a step is known."""
    ranks = Ranks(3)
    assert ranks.boundary(0.01)
    assert ranks.boundary(0.01)


def test_short_steps_share_a_vote():
    """Short steps have a vote every quarter of a second, and at every 16th step at least."""
    for seconds, steps in [(0.045, 5), (0.1, 2), (0.001, MAX_STEPS), (0.0, MAX_STEPS)]:
        ranks = Ranks(2)
        ranks.votes(100, seconds)
        assert [ranks.votes(10 * steps, seconds) for _ in range(2)] == [10, 10]


def test_long_steps_have_a_vote_each():
    """Long steps have a vote each, so a stop is never later than the end of a step."""
    ranks = Ranks(2)
    assert ranks.votes(20, 0.3) == 20


def test_more_votes_where_they_are_wanted():
    """A checkpoint that is due after every step needs a vote at every boundary."""
    interval = VoteInterval(max_seconds=0.0)
    for now in range(20):
        interval.count_step()
        assert interval.due
        interval.finish_vote(interval.propose(now / 1000), ready=True)


def test_steps_that_become_longer():
    """Steps that become longer have a vote each from the next vote on."""
    ranks = Ranks(2)
    ranks.votes(100, 0.001)
    assert ranks.votes(MAX_STEPS + 5, 10.0) >= 5
    assert ranks.votes(10, 10.0) == 10


def test_ranks_that_are_not_ready():
    """There is a vote at every boundary as long as a rank might wait for data."""
    ranks = Ranks(2)
    ranks.votes(100, 0.001)
    assert ranks.votes(MAX_STEPS + 10, 0.001, ready=False) >= 10
    assert ranks.votes(10, 0.001, ready=False) == 10


def test_a_required_vote():
    """After an evaluation the next boundary has a vote, whatever was agreed before."""
    ranks = Ranks(2)
    ranks.votes(100, 0.001)
    while not ranks.boundary(0.001):
        pass
    assert not ranks.boundary(0.001)
    for interval in ranks.each:
        interval.force_vote()
    assert ranks.boundary(0.001)
    assert not ranks.boundary(0.001)


def test_a_vote_required_while_one_is_under_way():
    """A vote that is required while another is under way takes place after that one."""
    interval = VoteInterval()
    interval.finish_vote(8, ready=True)
    proposal = interval.propose(1.0)
    interval.force_vote()
    interval.finish_vote(proposal, ready=True)
    assert interval.due


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans(), st.booleans()), max_size=60))
def test_all_ranks_count_alike(steps):
    """Whatever happens, the ranks' clocks apart, all vote at the same boundaries, at most MAX_STEPS steps apart."""
    ranks = Ranks(4)
    silent = 0
    for seconds, ready, haste in steps:
        if haste:
            for interval in ranks.each:
                interval.force_vote()
        voted = ranks.boundary(seconds, ready=ready)
        assert voted or not haste
        silent = 0 if voted else silent + 1
        assert silent < MAX_STEPS


@given(st.floats(1e-4, 2))
def test_the_time_between_votes_of_steady_steps(seconds):
    """The time between two votes is at most a quarter of a second, or one step."""
    ranks = Ranks(1)
    ranks.votes(64, seconds)
    gaps, gap = [], 0.0
    for _ in range(64):
        gap += seconds
        if ranks.boundary(seconds):
            gaps.append(gap)
            gap = 0.0
    assert max(gaps[1:]) <= max(TARGET_SECONDS, seconds) * 1.001
