from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.simulator.processor_sharing import ProcessorSharing, SharedJob, parts_of_jobs

GPUS = {"v100": 3, "p100": 2, "k80": 4}


@st.composite
def shared_jobs(draw):
    """Jobs of few kinds, so that some share a clock, by arrival."""
    kinds = draw(
        st.lists(
            st.dictionaries(st.sampled_from(sorted(GPUS)), st.sampled_from((1.0, 2.0, 3.5, 10.0)), min_size=1),
            min_size=1,
            max_size=4,
        )
    )
    found = []
    for number in range(draw(st.integers(1, 9))):
        kind, scale = draw(st.sampled_from(kinds)), draw(st.floats(0.1, 100.0))
        seconds = {gpu_type: scale * time for gpu_type, time in kind.items()}
        found.append(SharedJob(f"{number}", draw(st.floats(0.0, 50.0)), draw(st.sampled_from((1, 2, 8))), seconds))
    return sorted(found, key=lambda job: job.arrival)


def job_by_job(jobs, gpus):
    """Completions without virtual clocks: each job's remaining work is reduced from event to event."""
    bit = {gpu_type: 1 << i for i, gpu_type in enumerate(gpus)}
    types = {job.uid: sum(bit[gpu_type] for gpu_type in job.seconds) for job in jobs}
    waiting, left, ends, now = list(jobs), {}, {}, 0.0
    while waiting or left:
        live = {}
        for job, _ in left.values():
            live[types[job.uid]] = live.get(types[job.uid], 0) + 1
        parts = parts_of_jobs(live, {bit[gpu_type]: float(count) for gpu_type, count in gpus.items()})
        rate = {
            uid: sum(parts[types[uid]].get(bit[t], 0.0) / job.gpus / seconds for t, seconds in job.seconds.items())
            for uid, (job, _) in left.items()
        }
        ending = min((now + work / rate[uid] for uid, (_, work) in left.items()), default=math.inf)
        then = min(ending, waiting[0].arrival if waiting else math.inf)
        left = {uid: (job, work - rate[uid] * (then - now)) for uid, (job, work) in left.items()}
        now = then
        for uid in [uid for uid, (_, work) in left.items() if work <= 1e-9]:
            ends[uid] = now
            del left[uid]
        while waiting and waiting[0].arrival <= now:
            left[waiting[0].uid] = (waiting[0], 1.0)
            del waiting[0]
    return ends


@given(shared_jobs())
def test_virtual_clocks_give_the_completions_of_an_integration_job_by_job(jobs):
    """With any mixture of usable types and of speeds."""
    assert ProcessorSharing(GPUS).completions(jobs) == pytest.approx(job_by_job(jobs, GPUS), rel=1e-5)


@given(st.dictionaries(st.integers(1, 7), st.integers(1, 5), min_size=1))
def test_the_parts_of_all_jobs_are_all_gpus_that_any_of_them_can_use(jobs):
    """No job has a type that it cannot use, and no GPU of a type that a job can use is idle."""
    gpus = {1: 3.0, 2: 2.0, 4: 4.0}
    parts = parts_of_jobs(jobs, gpus)
    for one, count in gpus.items():
        used = sum(parts[types].get(one, 0.0) * jobs[types] for types in jobs)
        assert used == pytest.approx(count if any(one & types for types in jobs) else 0.0, abs=0.05)
    assert all(not gpu_type & ~types for types, amounts in parts.items() for gpu_type in amounts)


def test_jobs_of_all_types_have_all_types_evenly():
    """Two jobs have half of each type."""
    assert parts_of_jobs({0b11: 2}, {0b1: 1.0, 0b10: 3.0}) == {0b11: {0b1: 0.5, 0b10: 1.5}}


def test_a_job_of_fewer_types_takes_none_of_the_others():
    """Both have 12 GPUs; the wider one has the third type alone, and less of the first two."""
    parts = parts_of_jobs({0b011: 1, 0b111: 1}, {0b1: 8.0, 0b10: 8.0, 0b100: 8.0})
    assert parts[0b011] == pytest.approx({0b1: 6.0, 0b10: 6.0})
    assert parts[0b111] == pytest.approx({0b1: 2.0, 0b10: 2.0, 0b100: 8.0})


def test_the_speed_of_a_job_changes_with_its_part():
    """Alone it has both types; with a second job that accepts the fast type alone, it has the slow one."""
    wide = SharedJob("wide", 0.0, 1, {"v100": 100.0, "k80": 1000.0})
    narrow = SharedJob("narrow", 50.0, 1, {"v100": 10.0})
    ends = ProcessorSharing({"v100": 1, "k80": 1}).completions([wide, narrow])
    assert ends["narrow"] == pytest.approx(60.0, rel=1e-3)
    assert ends["wide"] == pytest.approx(60.0 + (100.0 - 55.0 - 1.0) / 1.1, rel=1e-3)
