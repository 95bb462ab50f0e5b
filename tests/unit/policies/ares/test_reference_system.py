from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.ares.reference_system import ReferenceSystem
from tests.unit.fluid import fluid

ARRIVALS = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 500), st.sampled_from((0.25, 0.5, 1.0))), min_size=1, max_size=15
)


def jobs_of(drawn):
    return [(f"j{i:02}", float(at), float(work), weight) for i, (at, work, weight) in enumerate(sorted(drawn))]


def ends_of(jobs, gpus, instants=()):
    """Ends of jobs in the reference system, which is advanced to further instants in between."""
    reference = ReferenceSystem({"n0": gpus}, 0.0)
    ends = {}
    for at, uid, work, weight in sorted(
        [(at, uid, work, w) for uid, at, work, w in jobs] + [(t, *"---") for t in instants]
    ):
        ends |= dict(reference.advance(at))
        if uid != "-":
            reference.clocks[0].arrive(uid, work, weight)
    return ends | dict(reference.advance(math.inf))


@given(ARRIVALS, st.integers(1, 64))
def test_jobs_end_when_they_would_under_processor_sharing(drawn, gpus):
    """Ends in virtual time equal those of a simulation job by job, for any arrivals, demands and weights."""
    jobs = jobs_of(drawn)
    assert ends_of(jobs, gpus) == pytest.approx(fluid(jobs, gpus))


@given(ARRIVALS, st.integers(1, 8), st.lists(st.integers(0, 300), max_size=20))
def test_ends_do_not_depend_on_how_often_time_is_advanced(drawn, gpus, instants):
    """Time may be advanced in one step or in many."""
    jobs = jobs_of(drawn)
    assert ends_of(jobs, gpus, map(float, instants)) == pytest.approx(ends_of(jobs, gpus))


@given(ARRIVALS, st.integers(1, 8))
def test_virtual_time_never_decreases_and_finish_times_order_the_ends(drawn, gpus):
    """Finish times that are fixed at arrival order the ends of all jobs."""
    reference = ReferenceSystem({"n0": gpus}, 0.0)
    finish, ended, before = {}, [], 0.0
    for uid, at, work, weight in jobs_of(drawn):
        ended += reference.advance(at)
        assert reference.clocks[0].virtual >= before
        before = reference.clocks[0].virtual
        finish[uid] = reference.clocks[0].arrive(uid, work, weight)
        assert finish[uid] >= reference.clocks[0].virtual
    ended += reference.advance(math.inf)
    order = [finish[uid] for uid, _ in ended]
    assert order == sorted(order)
    assert len(ended) == len(finish)
    assert reference.clocks[0].weight == 0


def test_virtual_time_is_the_service_of_one_job():
    """It grows by M/N: Equation 2."""
    reference = ReferenceSystem({"n0": 8}, 0.0)
    reference.advance(5.0)
    assert reference.clocks[0].virtual == 0  # no job is there
    reference.clocks[0].arrive("a", 1000.0)
    reference.advance(15.0)
    assert reference.clocks[0].virtual == 80
    reference.clocks[0].arrive("b", 1000.0)
    reference.advance(25.0)
    assert reference.clocks[0].virtual == 120


def test_the_finish_time_is_virtual_time_at_arrival_plus_work_over_weight():
    """Equation 3."""
    reference = ReferenceSystem({"n0": 4}, 0.0)
    assert reference.clocks[0].arrive("a", 100.0) == 100
    reference.advance(10.0)
    assert reference.clocks[0].arrive("b", 100.0, weight=0.5) == 40 + 200


def test_jobs_of_unknown_demand_have_their_part_of_the_gpus():
    """One of them halves the part of a job of known demand."""
    reference = ReferenceSystem({"n0": 4}, 0.0)
    reference.clocks[0].others = 1.0
    reference.clocks[0].arrive("a", 100.0)
    assert reference.advance(math.inf) == [("a", 50.0)]


def test_without_gpus_time_passes_and_virtual_time_does_not():
    """A cluster without GPUs serves no job."""
    reference = ReferenceSystem({"n0": 0}, 0.0)
    reference.clocks[0].arrive("a", 10.0)
    assert reference.advance(100.0) == []
    assert (reference.now, reference.clocks[0].virtual) == (100.0, 0.0)
    reference.change_nodes({"n0": 1}, [{"n0"}])
    assert reference.advance(200.0) == [("a", 110.0)]


@given(ARRIVALS, st.integers(1, 8), st.integers(0, 14))
def test_the_reference_system_survives_json(drawn, gpus, cut):
    """Ends after writing and reading are the same."""
    jobs = jobs_of(drawn)
    reference = ReferenceSystem({"n0": gpus}, 0.0)
    ends = {}
    for i, (uid, at, work, weight) in enumerate(jobs):
        if i == cut:
            reference = ReferenceSystem.from_json(json.loads(json.dumps(reference.to_json())))
        ends |= dict(reference.advance(at))
        reference.clocks[0].arrive(uid, work, weight)
    assert ends | dict(reference.advance(math.inf)) == ends_of(jobs, gpus)


class Counted(float):
    """A number that counts how often it is compared."""

    count = 0

    def __lt__(self, other):
        Counted.count += 1
        return float(self) < float(other)

    __hash__ = float.__hash__

    def __eq__(self, other):
        return float(self) == float(other)


class CountedWork(float):
    """Work from which counted finish times come."""

    def __truediv__(self, other):
        return CountedWork(float(self) / other)

    def __radd__(self, other):
        return Counted(other + float(self))


@pytest.mark.parametrize("active", [2**6, 2**10, 2**14])
def test_an_event_costs_the_logarithm_of_the_active_jobs(active):
    """Comparisons in the heap for an arrival and for an end are a small multiple of log2 n."""
    chance = random.Random(active)  # noqa: S311  no secret
    reference = ReferenceSystem({"n0": 1}, 0.0)
    for i in range(active):
        reference.clocks[0].arrive(f"{i}", CountedWork(chance.uniform(1e6, 2e6)))
    Counted.count = 0
    for i in range(100):
        reference.clocks[0].arrive(f"new{i}", CountedWork(chance.uniform(0, 3e6)))
    arrivals = Counted.count / 100
    Counted.count = 0
    ended = 0
    while ended < 100:
        ended += len(reference.advance(reference.next_end))
    ends = Counted.count / ended
    assert 0 < arrivals <= math.log2(active) + 2
    assert 0 < ends <= 2 * math.log2(active) + 4
