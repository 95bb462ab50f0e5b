"""The list of jobs that is read a part at a time: equal to a list read whole, in bounded reads, after any history."""

import json
from concurrent.futures import Future
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.slurm import job_list
from metasched.slurm.errors import NoSuchJobError, SlurmUnavailableError
from metasched.slurm.job_list import JobList
from metasched.slurm.job_readers import JsonReader, TextReader
from metasched.slurm.json_parser import JobsParser
from tests.unit.slurm.job_texts import text_of
from tests.unit.slurm.test_json_parser import PENDING_22

ON_N3 = {
    "allocated_nodes": [{"nodename": "n3", "memory_allocated": 0, "sockets": {"0": {"cores": {"0": "allocated"}}}}]
}


def at_once(call):
    """Starts nothing: the call's result is that of now, whenever it is asked for."""
    future = Future()
    try:
        future.set_result(call())
    except SlurmUnavailableError as error:
        future.set_exception(error)
    return future


class Queue:
    """A Slurm with records by id, each a dictionary of the fields that differ from a pending job's.

    Attributes:
        texts: whether records are read as texts, as in Slurm 22.05.
        asked: the ids of each read of records; None for a read of all.
        down: whether Slurm does not answer reads of records.
        hidden: the id of a record that is left out of reads of records; None for none.
    """

    def __init__(self, *, texts=False):
        self.records = {}
        self.texts = texts
        self.asked = []
        self.down = False
        self.hidden = None
        self.ids = count(1)

    def add(self, **fields):
        number = next(self.ids)
        self.records[number] = {"job_id": number, "submit_time": number, **fields}
        return number

    def reader(self):
        return TextReader(self.run, self.run_for_large, at_once) if self.texts else JsonReader(self.run_for_json)

    def run(self, argv):
        assert "--json" not in argv
        if argv[0] == "scontrol":
            return self.show_jobs(int(argv[5]) if len(argv) > 5 else None)
        ids = [int(number) for number in argv[argv.index("-j") + 1].split(",")] if "-j" in argv else None
        if "-O" in argv:
            found = [record for record in self.found(ids) if record["job_id"] in (ids or self.lines())]
            return "".join(f"{one['job_id']:<20}{one.get('admin_comment', '(null)'):<300}\n" for one in found)
        if "-r" in argv:
            return "".join(f"{record['job_id']}\n" for record in self.found(ids))
        return "".join(
            f"{number}|{number}|{record.get('job_state', 'PENDING')}|{record.get('array_task_string', '')}"
            f"|{record['submit_time']}|{record.get('priority', 0)}|||||||N/A\n"
            for number, record in self.lines().items()
        )

    def lines(self):
        """The records with a line of squeue's; the line of an array stands for its pending tasks."""
        return {
            number: record
            for number, record in self.records.items()
            if record.get("array_task_id") is None or "job_state" in record
        }

    def found(self, ids):
        """The records that Slurm prints where it is asked for some, or all."""
        if self.down:
            raise SlurmUnavailableError("no answer")
        if ids is not None and len(ids) == 1 and ids[0] not in self.records:
            raise NoSuchJobError("slurm_load_jobs error: Invalid job id specified")
        return [
            record
            for number, record in self.records.items()
            if ids is None or number in ids or record.get("array_job_id") in ids
            if number != self.hidden
        ]

    def run_for_large(self, argv):
        return self.run_for_json(argv) if "--json" in argv else self.run(argv).encode()

    def run_for_json(self, argv):
        ids = [int(number) for number in argv[argv.index("-j") + 1].split(",")] if "-j" in argv else None
        self.asked.append(ids)
        found = [
            PENDING_22 | record | ({"job_resources": ON_N3} if record.get("job_state") == "RUNNING" else {})
            for record in self.found(ids)
        ]
        return json.dumps({"jobs": found}, indent=2).encode()

    def show_jobs(self, number):
        self.asked.append(None if number is None else [number])
        found = self.found(None if number is None else [number])
        running = {"allocation": ("Nodes=n3 CPU_IDs=0 Mem=0 GRES=",)}
        return text_of(*((running if one.get("job_state") == "RUNNING" else {}) | one for one in found))

    def listed(self):
        """What a list that reads the JSON of all jobs would have, by id."""
        return {job.slurm_job_id: job for job in JobsParser().parse(self.run_for_json([])).records}


def jobs_of(queue):
    return JobList(queue.run, queue.reader, lambda errors: None)


def by_id(jobs):
    return {job.slurm_job_id: job for job in jobs}


@pytest.fixture
def few_reads(monkeypatch):
    """Reads that are small enough for a test."""
    monkeypatch.setattr(job_list, "MOST_READS", 3)
    monkeypatch.setattr(job_list, "REFRESH_READS", 2)


@pytest.fixture
def queue():
    found = Queue()
    found.add()
    return found


def test_jobs_that_arrive_at_once_are_read_in_several_polls(queue, few_reads):
    """Those that run already, and known ones that were written, are read in the first of these polls."""
    jobs = jobs_of(queue)
    jobs.read()
    new = [queue.add() for _ in range(5)]
    running = queue.add(job_state="RUNNING")
    jobs.note_write("1")
    assert by_id(jobs.read()).keys() == {"1", str(running), str(new[0])}
    assert queue.asked[-1] == [running, 1, new[0]]
    assert len(jobs.read()) == 6
    assert by_id(jobs.read()) == queue.listed()
    assert [len(ids) for ids in queue.asked if ids] == [1, 3, 3, 1]


def test_jobs_that_arrive_at_once_are_read_in_the_order_of_their_arrival(queue, few_reads):
    """Even where squeue lists the latest first."""
    jobs = jobs_of(queue)
    jobs.read()
    new = [queue.add() for _ in range(5)]
    queue.records = dict(reversed(queue.records.items()))
    jobs.read()
    jobs.read()
    assert queue.asked[-2:] == [new[:3], new[3:]]


def test_a_change_of_a_known_job_waits_behind_earlier_ones_only(queue, few_reads):
    """Jobs that keep changing do not keep others from being read."""
    jobs = jobs_of(queue)
    others = [queue.add() for _ in range(6)]
    jobs.read()
    for round_ in range(1, 4):
        for number in others:
            queue.records[number]["priority"] = round_
        queue.records[1]["priority"] = 5
        jobs.read()
    assert by_id(jobs.read())["1"] == queue.listed()["1"]


def test_a_read_that_fails_is_made_up_for(queue):
    """What was to be read is read by the next call."""
    jobs = jobs_of(queue)
    jobs.read()
    queue.add()
    queue.down = True
    with pytest.raises(SlurmUnavailableError):
        jobs.read()
    queue.down = False
    assert by_id(jobs.read()) == queue.listed()


def test_what_a_line_does_not_show_is_refreshed_a_part_at_a_time(queue, few_reads, monkeypatch):
    """Each job is read once in a refresh, which does not begin before its time."""
    jobs = jobs_of(queue)
    for _ in range(4):
        queue.add()
    jobs.read()
    for record in queue.records.values():
        record["comment"] = "edited"
    assert {job.comment for job in jobs.read()} == {PENDING_22["comment"]}
    monkeypatch.setattr(job_list, "REFRESH_SECONDS", 0.0)
    queue.asked.clear()
    jobs.read()
    monkeypatch.setattr(job_list, "REFRESH_SECONDS", 60.0)
    jobs.read()
    assert {job.comment for job in jobs.read()} == {"edited"}
    assert queue.asked == [[1, 2], [3, 4], [5]]
    jobs.read()
    assert len(queue.asked) == 3


def test_a_record_that_a_read_did_not_have_is_found_by_a_refresh(queue, monkeypatch):
    """It has a line all the time."""
    jobs = jobs_of(queue)
    queue.add()
    jobs.read()
    queue.hidden, queue.records[1]["priority"] = 1, 5
    assert by_id(jobs.read()).keys() == {"2"}
    queue.hidden = None
    assert by_id(jobs.read()).keys() == {"2"}
    monkeypatch.setattr(job_list, "REFRESH_SECONDS", 0.0)
    assert by_id(jobs.read()) == queue.listed()


def test_tasks_of_an_array_are_read_by_record(queue):
    """A task that is written or starts is one record; the tasks that wait share another."""
    jobs = jobs_of(queue)
    array = queue.add(array_task_string="0-4")
    queue.records[array]["array_job_id"] = array
    assert by_id(jobs.read()).keys() == {"1", *(f"{array}_{task}" for task in range(5))}
    queue.records[array]["array_task_string"] = "1-4"
    task = queue.add(array_job_id=array, array_task_id=0, job_state="RUNNING")
    assert by_id(jobs.read()) == queue.listed()
    assert sorted(queue.asked[-2]) == [array, task]
    jobs.note_write(f"{array}_0")
    assert by_id(jobs.read()) == queue.listed()
    assert queue.asked[-2] == [task]
    jobs.note_write(f"{array}_3")
    assert by_id(jobs.read()) == queue.listed()
    assert queue.asked[-2] == [array]
    queue.add()
    jobs.read()
    assert len(queue.asked[-1]) == 1  # the array's other tasks do not look like the output of 22.05


def test_a_gone_job_is_dropped_without_a_read(queue):
    """The list of lines is enough."""
    jobs = jobs_of(queue)
    gone = queue.add()
    jobs.read()
    del queue.records[gone]
    assert by_id(jobs.read()).keys() == {"1"}
    assert queue.asked == [[1, 2]]


def test_a_job_that_goes_between_the_two_reads_is_dropped(queue, monkeypatch):
    """Slurm refuses to print a job that it has forgotten meanwhile."""
    jobs = jobs_of(queue)
    jobs.read()
    late = queue.add()
    run = queue.run
    monkeypatch.setattr(jobs, "_run", lambda argv: [run(argv), queue.records.pop(late)][0])
    assert by_id(jobs.read()).keys() == {"1"}


EVENTS = ("come", "come", "start", "end", "go", "write", "comment", "down", "hide", "array", "split", "many")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 9)), max_size=30), st.booleans())
def test_the_list_becomes_that_of_a_whole_read_after_any_history(events, texts):
    """No read but the first, or one after many urgent changes, asks for more records than allowed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_list, "MOST_READS", 4)
        patch.setattr(job_list, "REFRESH_READS", 2)
        patch.setattr(job_list, "REFRESH_POLLS", 100)
        queue = Queue(texts=texts)
        jobs = jobs_of(queue)
        jobs.read()
        for event, number in events:
            happen(queue, jobs, event, number)
            try:
                jobs.read()
            except SlurmUnavailableError:
                assert queue.down
            queue.down, queue.hidden = False, None
        for _ in range(30):
            jobs.read()
        patch.setattr(job_list, "REFRESH_SECONDS", 0.0)
        for _ in range(30):
            jobs.read()
        assert by_id(jobs.read()) == queue.listed()
        assert len(jobs.read()) == len(queue.listed())
        assert all(len(ids) <= 4 + 2 for ids in queue.asked if ids)


def happen(queue, jobs, event, number):  # noqa: C901, PLR0912  one case for each event
    records = queue.records
    known = list(records)[number % len(records)] if records else None
    match event:
        case "come":
            queue.add(priority=number)
        case "many":
            for _ in range(9):
                queue.add()
        case "start" if known and "array_task_string" not in records[known]:
            records[known]["job_state"] = "RUNNING"
        case "end" if known and "array_task_string" not in records[known]:
            records[known]["job_state"] = "COMPLETED"
        case "go" if known:
            del records[known]
        case "write" if known:
            task = records[known].get("array_task_id")
            jobs.note_write(str(known) if task is None else f"{records[known]['array_job_id']}_{task}")
            records[known]["admin_comment"] = f"w{number}"
        case "comment" if known:
            records[known]["comment"] = f"c{number}"
        case "down":
            queue.down = True
            queue.add()
        case "hide" if known:
            queue.hidden = known
            records[known]["priority"] = number
        case "array":
            array = queue.add(array_task_string="0-3")
            records[array]["array_job_id"] = array
        case "split":
            array = next((one for one, record in records.items() if record.get("array_task_string")), None)
            if array is not None:
                first, _, rest = records[array]["array_task_string"].partition("-")
                queue.add(array_job_id=array, array_task_id=int(first), job_state="RUNNING")
                if int(first) < 3:
                    records[array]["array_task_string"] = f"{int(first) + 1}-{rest}"
                else:
                    del records[array]
