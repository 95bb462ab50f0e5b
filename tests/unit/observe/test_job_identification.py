"""Identification of metasched's jobs in successive lists."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from metasched.configuration.config import Intake
from metasched.observe.job_identification import JobIdentifier, identify
from tests.unit.slurm.test_json_parser import PENDING_22, job

STAMPS = ("metasched:0000000000000001", "metasched:0000000000000002", "metasched:0000000000000003", "", "words")
jobs = st.builds(
    lambda number, stamp, tagged, task: replace(
        job(PENDING_22),
        slurm_job_id=str(number) if task is None else f"1_{task}",
        job_id=number,
        admin_comment=STAMPS[stamp],
        comment="metasched" if tagged else "",
        array_job_id=None if task is None else 1,
        array_task_id=task,
    ),
    st.integers(1, 9),
    st.integers(0, len(STAMPS) - 1),
    st.booleans(),
    st.sampled_from((None, None, 0, 1, 2)),
)
lists = st.lists(jobs, max_size=6, unique_by=lambda one: (one.job_id, one.array_task_id))


@given(lists=st.lists(lists, max_size=5), keeps=st.booleans())
def test_successive_lists_are_identified_as_if_each_were_alone(lists, keeps):
    """What was known of the list before changes nothing, in no order of jobs that come, go and change."""
    identifier, intake, listed = JobIdentifier(), Intake(), ()
    for new in lists:
        ids = {one.job_id for one in new}
        listed = (*(one for one in listed if keeps and one.job_id not in ids), *new)
        found, expected = identifier.identify(listed, {}, intake, 0.0), identify(listed, {}, intake, 0.0)
        assert found.by_stamps == expected.by_stamps
        if found.by_stamps:
            assert list(found.ours.items()) == list(expected.ours.items())
            assert list(found.others) == list(expected.others)


def test_tasks_of_one_record_that_return_are_in_the_order_listed():
    """They have one job id, so that nothing but Slurm's list has their order."""
    record = replace(job(PENDING_22), admin_comment=STAMPS[0], array_job_id=22)
    tasks = [replace(record, slurm_job_id=f"22_{task}", array_task_id=task) for task in range(6)]
    identifier, intake = JobIdentifier(), Intake()
    for listed in (tasks, [], tasks):
        found = identifier.identify(tuple(listed), {}, intake, 0.0)
        assert list(found.ours.values()) == listed


def test_tasks_of_one_record_that_are_listed_in_another_order_are_identified_afresh():
    """What has changed in place would keep the order of the list before."""
    record = replace(job(PENDING_22), admin_comment=STAMPS[0], array_job_id=22)
    identifier, intake = JobIdentifier(), Intake()
    for order in ((0, 1, 2), (2, 0, 1)):
        listed = [replace(record, slurm_job_id=f"22_{task}", array_task_id=task) for task in order]
        found = identifier.identify(tuple(listed), {}, intake, 0.0)
        assert list(found.ours.values()) == listed


def test_another_job_with_a_known_stamp_is_a_rival():
    """An operator's copy of a stamp is found among the jobs that were there before."""
    one = replace(job(PENDING_22), admin_comment=STAMPS[0])
    identifier, intake, copy = JobIdentifier(), Intake(), replace(one, slurm_job_id="23", job_id=23)
    assert identifier.identify((one,), {}, intake, 0.0).by_stamps
    found = identifier.identify((one, copy), {}, intake, 0.0)
    assert not found.by_stamps
    assert len(found.others) == 1
