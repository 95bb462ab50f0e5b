"""The readers of job records: what they ask Slurm for, and whom they believe."""

import gc

import pytest

from metasched.core.model import Hold
from metasched.slurm import job_list, job_readers
from metasched.slurm.errors import SlurmUnavailableError
from metasched.slurm.job_readers import MOST_NAMED, MOST_SINGLE, JsonReader, TextReader
from tests.unit.slurm.job_texts import text_of
from tests.unit.slurm.test_job_list import Queue, at_once, jobs_of

STAMP = "metasched:0123456789abcdef"


@pytest.fixture
def queue():
    """Ten jobs of a Slurm 22.05."""
    made = Queue(texts=True)
    for _ in range(MOST_SINGLE + 2):
        made.add()
    return made


@pytest.fixture
def reader(queue):
    return queue.reader()


def jobs_in(reading):
    """The jobs of a reading by their ids, of which each stands once."""
    jobs = [job for found in reading.records.values() for job in found]
    by_id = {job.slurm_job_id: job for job in jobs}
    assert len(jobs) == len(by_id)
    return by_id


def read(reader, *numbers):
    wanted = [str(number) for number in numbers]
    reading = reader.read(wanted, [], lambda: dict.fromkeys(map(str, range(100)), "a"))
    assert not reading.errors
    return jobs_in(reading)


def test_few_records_are_read_singly_and_many_at_once(queue, reader):
    """One scontrol for each of a few; no JSON."""
    assert read(reader, 3, 1).keys() == {"3", "1"}
    assert queue.asked == [[3], [1]]
    assert read(reader, *queue.records).keys() == set(map(str, queue.records))
    assert queue.asked[2:] == [None]


def test_json_names_its_records_as_far_as_they_are_not_too_many(queue):
    """A command line has a limit."""
    reader = JsonReader(queue.run_for_json)
    assert read(reader, 3, 1).keys() == {"3", "1"}
    assert len(read(reader, *range(1, MOST_NAMED + 2))) == len(queue.records)
    assert queue.asked == [[3, 1], None]


@pytest.mark.parametrize("texts", [True, False])
def test_a_record_that_is_gone_is_left_out(texts):
    """Also the only one that was asked for."""
    queue = Queue(texts=texts)
    queue.add()
    assert not read(queue.reader(), 5)
    assert read(queue.reader(), 1, 5).keys() == {"1"}


def test_an_unchanged_job_is_the_same_object(queue, reader):
    """Until it is forgotten."""
    first, again = read(reader, 1, 2), read(reader, *queue.records)
    assert again["1"] is first["1"]
    queue.records[1]["comment"] = "edited"
    assert read(reader, 1)["1"].comment == "edited"
    reader.forget_all_but({"1": ()})
    assert read(reader, 2)["2"] is not first["2"]


def test_an_admin_comment_is_confirmed_once(queue, reader, monkeypatch):
    """By squeue, which prints it with nothing of a user's beside it."""
    asked = []
    run = queue.run_for_large
    monkeypatch.setattr(reader, "_run_for_large", lambda argv: (asked.append(argv), run(argv))[1])
    queue.records[1]["admin_comment"] = STAMP
    for state in ("PENDING", "RUNNING"):
        queue.records[1]["job_state"] = state
        assert read(reader, 1, 2)["1"].admin_comment == STAMP
    assert [argv[-1] for argv in asked if "-O" in argv] == ["1"]
    assert None not in queue.asked


@pytest.mark.parametrize("many", [False, True])
def test_a_forged_admin_comment_is_not_believed(queue, reader, many):
    """A user's directory may have a line break; then the JSON is read."""
    queue.records[1]["directory"] = f"/home/ann\n   AdminComment={STAMP} "
    found = read(reader, *(queue.records if many else [1]))
    assert found["1"].admin_comment == ""
    queue.records[1]["admin_comment"] = "metasched:fedcba9876543210"
    assert read(reader, 1)["1"].admin_comment == "metasched:fedcba9876543210"


def forged(**record):
    """The comment of a job after which a whole other record seems to begin."""
    return f"x\n   StdErr=\n   StdIn=\n   StdOut=\n   Power=\n\n{text_of(record).strip()}"


@pytest.mark.parametrize("asked", [[2], [1, 2], None])
def test_a_forged_record_of_another_job_is_not_believed(queue, reader, asked):
    """One of two texts of the same record is a user's; then the JSON is read."""
    queue.records[1]["comment"] = forged(job_id=2, user_name="root", comment="of root")
    found = read(reader, *(queue.records if asked is None else asked))
    assert found["2"].user == "ann"
    assert "1" not in found or found["1"].comment.startswith("x\n")


@pytest.mark.parametrize("many", [False, True])
def test_a_forged_task_of_an_array_is_not_believed(queue, reader, many):
    """Whether such a record exists, squeue tells."""
    array = queue.add(array_task_string="0-4")
    queue.records[array]["array_job_id"] = array
    task = queue.add(array_job_id=array, array_task_id=4)
    wanted = [*queue.records][:-1] if many else [array]
    expected = {f"{array}_{number}" for number in range(5)}
    queue.records[1]["comment"] = forged(job_id=99, array_job_id=array, array_task_id=9)
    queue.records[task]["comment"] = forged(job_id=98, array_job_id=array, array_task_id=8)
    found = read(reader, *wanted)
    assert {job_id for job_id in found if job_id.startswith(f"{array}_")} == expected


def test_what_cannot_be_read_as_text_is_read_as_json(queue, reader):
    """One read of JSON, of these records alone."""
    queue.records[1]["reason"] = "job_requeued_in_held_state"
    queue.records[2]["nodes"] = "many"
    assert read(reader, *queue.records).keys() == set(map(str, queue.records))
    assert queue.asked == [None, None]
    assert read(reader, 1, 2, 3).keys() == {"1", "2", "3"}
    assert queue.asked[2:] == [[1], None, [2], [3]]  # the text of record 2 has told all of it before


def test_who_holds_a_job_is_read_again_where_its_text_does_not_tell(queue, reader):
    """The text stays the same when an administrator's hold replaces a user's."""
    queue.records[1] |= {"reason": "job_requeued_in_held_state", "state_reason": "JobHeldUser"}
    assert read(reader, 1)["1"].hold is Hold.USER
    assert read(reader, 1)["1"] is read(reader, 1)["1"]
    queue.records[1]["state_reason"] = "JobHeldAdmin"
    assert read(reader, 1)["1"].hold is Hold.ADMIN


def test_an_unreadable_record_is_an_error_of_its_own(queue, reader):
    """The others are read."""
    queue.records[1]["job_state"] = "DANCING"
    parsed = reader.read(["1", "2"], [], lambda: others(queue))
    assert jobs_in(parsed).keys() == {"2"}
    assert len(parsed.errors) == 1


def test_a_text_reader_reads_nothing_of_no_jobs():
    """The words of scontrol for that are no record."""
    reader = TextReader(lambda argv: "", lambda argv: b"No jobs in the system\n", at_once)
    assert not reader.read([str(number) for number in range(1, 2 + MOST_SINGLE)], [], dict).records


def others(queue, line="a"):
    """All records of a queue, with the same line."""
    return {str(number): line for number in queue.records}


def test_many_records_that_can_wait_are_read_in_the_background(queue, reader):
    """The call that begins it answers urgent records; the next one the others, of which few are parsed at a time."""
    first = reader.read(["1"], others(queue), lambda: others(queue))
    assert list(first.answered) == ["1"]
    second = reader.read([], others(queue), lambda: others(queue))
    assert set(second.answered) == set(others(queue))
    assert queue.asked == [[1], None]


def test_a_record_whose_line_has_changed_is_read_again(queue, reader):
    """What was read in the background may be from before the change."""
    reader.read([], others(queue), lambda: others(queue))
    queue.records[2]["comment"] = "edited"
    second = reader.read([], others(queue), lambda: others(queue) | {"2": "b"})
    assert "2" not in second.answered
    found = {}
    for _ in range(3):
        found |= jobs_in(reader.read([], others(queue), lambda: others(queue) | {"2": "b"}))
    assert found["2"].comment == "edited"


def test_a_record_that_was_read_since_is_not_set_back(queue, reader):
    """An urgent read is later than the one in the background, also of an array's task without a line."""
    array = queue.add(array_task_string="0-3")
    queue.records[array]["array_job_id"] = array
    task = queue.add(array_job_id=array, array_task_id=4, comment="before")
    without = {number: line for number, line in others(queue).items() if number != str(task)}
    read(reader, array)
    reader.read([], without, lambda: without)
    queue.records[1]["comment"] = queue.records[task]["comment"] = "after"
    for urgent in (["1", str(task)], []):
        found = jobs_in(reader.read(urgent, without, lambda: without))
        assert {found[job_id].comment for job_id in ("1", f"{array}_4") if job_id in found} <= {"after"}
        assert bool(urgent) == ("1" in found) == (f"{array}_4" in found) == (f"{array}_3" in found)


def test_a_read_in_the_background_that_fails_is_an_error_of_the_next_call(queue, reader):
    """After it another one begins."""
    queue.down = True
    reader.read([], others(queue), lambda: others(queue))
    with pytest.raises(SlurmUnavailableError):
        reader.read([], others(queue), lambda: others(queue))
    queue.down = False
    reader.read([], others(queue), lambda: others(queue))
    assert len(reader.read([], others(queue), lambda: others(queue)).answered) == len(queue.records)


def test_few_texts_are_parsed_at_a_time(queue, reader, monkeypatch):
    """Unchanged ones are not counted."""
    monkeypatch.setattr(job_readers, "MOST_PARSED", 3)
    answers = [reader.read([], others(queue), lambda: others(queue)).answered for _ in range(5)]
    assert [len(answered) for answered in answers] == [0, 3, 3, 3, 1]
    queue.records[5]["comment"] = "edited"
    answers = [reader.read([], others(queue), lambda: others(queue)).answered for _ in range(4)]
    assert max(len(answered) for answered in answers) == 10


def test_no_text_is_kept_of_a_record_that_is_answered(queue, reader, monkeypatch):
    """The texts of 10,000 jobs take 12 MB."""
    monkeypatch.setattr(job_readers, "MOST_PARSED", 6)
    asked = others(queue)
    reader.read([], asked, lambda: others(queue))
    for left in (4, 0):
        answered = reader.read([], asked, lambda: others(queue)).answered
        asked = {number: line for number, line in asked.items() if number not in answered}
        gc.collect()
        assert sum(isinstance(one, job_readers._Text) for one in gc.get_objects()) == len(asked) == left


def scheduled(queue, between):
    """The commands of a queue, between whose scontrol and squeue something happens, once."""
    events = [between]

    def run(argv):
        printed = queue.run_for_large(argv)
        if argv[0] == "scontrol" and len(argv) == 5 and events:
            events.pop()()
        return printed

    return TextReader(queue.run, run, at_once)


def short_forged(**record):
    """A text after which a record seems to end, whose own request it then has, and another one to begin."""
    head, _, rest = text_of(record).strip().partition("\n")
    return f"x\n   StdErr=\n   StdIn=\n   StdOut=\n   Power=\n   TresPerJob=gres:gpu:1\n\n{head}\n{rest}"


@pytest.mark.parametrize("in_background", [False, True])
def test_a_forged_record_of_a_job_that_comes_meanwhile_is_not_believed(queue, in_background):
    """Its id exists once squeue is asked; whether it did before, the lines tell."""
    number = len(queue.records) + 1
    queue.records[1]["comment"] = short_forged(job_id=number, user_name="root")
    lines = others(queue)
    reader = scheduled(queue, lambda: queue.add(comment="mine"))
    found = {}
    for _ in range(3 if in_background else 1):
        reading = reader.read(*([], lines) if in_background else (lines, []), lambda: lines)
        found |= jobs_in(reading)
    assert (found["1"].gpus_total, found["1"].gpus_per_node) == (None, 2)
    assert str(number) not in found


def test_a_forged_task_of_an_array_that_is_split_meanwhile_is_not_believed(queue):
    """The array is read by itself, without the texts of others."""
    array = queue.add(array_task_string="0-4")
    queue.records[array]["array_job_id"] = array
    lines = others(queue)
    queue.records[1]["comment"] = short_forged(job_id=array + 1, array_job_id=array, array_task_id=4, user_name="root")

    def split():
        queue.records[array]["array_task_string"] = "0-3"
        queue.add(array_job_id=array, array_task_id=4)

    found = jobs_in(scheduled(queue, split).read(lines, [], lambda: lines))
    assert {job.user for job in found.values()} == {"ann"}
    assert found.keys() >= {f"{array}_{task}" for task in range(5)}


def test_a_task_that_its_array_brings_with_it_stands_once(queue, reader):
    """Also where both are read singly; the later text wins."""
    array = queue.add(array_task_string="1-3")
    queue.records[array]["array_job_id"] = array
    task = queue.add(array_job_id=array, array_task_id=0, job_state="RUNNING")
    assert len(read(reader, array, task)) == 4
    reader.read([], others(queue), lambda: others(queue))
    queue.records[task]["comment"] = "after"
    found = jobs_in(reader.read([str(array)], others(queue), lambda: others(queue)))
    assert found[f"{array}_0"].comment == "after"


def test_what_is_no_longer_listed_is_forgotten(monkeypatch):
    """Also where a refresh takes one poll."""
    monkeypatch.setattr(job_list, "REFRESH_SECONDS", 0.0)
    for texts in (True, False):
        queue = Queue(texts=texts)
        jobs = jobs_of(queue)
        for _ in range(20):
            queue.records.pop(queue.add() - 2, None)
            jobs.read()
        known = jobs._reader._known if texts else jobs._reader._parser._known
        assert len(known) <= 3


@pytest.mark.parametrize("line", ["Nodes=n1 Mem=1 GRES=", "Nodes=n1 CPU_IDs=0 GRES=", "Nodes=n1 CPU_IDs=x Mem=1"])
def test_an_allocation_of_another_form_is_read_as_json(queue, reader, line):
    """No other error leaves the reader."""
    queue.records[1] |= {"job_state": "RUNNING", "allocation": (line,)}
    assert read(reader, 1)["1"].allocated == {"n3": 0}
