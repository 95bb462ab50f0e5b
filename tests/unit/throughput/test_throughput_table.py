from __future__ import annotations

import json
import math

import pytest

from metasched.core.model import Placement
from metasched.throughput.throughput_table import TableError, TableTraining, ThroughputTable
from metasched.throughput.training import Pace
from tests.unit.gavel_tables import small_table, table_json, write_table


def speed_of(model, table=None):
    return TableTraining(table or small_table(), model, 100.0).known(0.0)


def test_a_table_is_read_from_a_file(tmp_path):
    """Isolated and co-located speeds are those of the file, by type, model and GPUs."""
    read, made = ThroughputTable.read(write_table(tmp_path / "t.json")), small_table()
    assert read.alone == made.alone
    assert read.colocated == made.colocated
    assert read.types == ("k80", "v100")
    assert read.models == ("quick", "steady")


def test_speeds_that_the_table_lacks_are_not_known():
    """A missing type, number of GPUs or model gives None; a zero in the table remains zero."""
    quick = speed_of("quick")
    assert quick.steps_per_second("v100", (1,)) == 10.0
    assert quick.steps_per_second("a100", (1,)) is None
    assert quick.steps_per_second("v100", (4,)) is None
    assert speed_of("steady").steps_per_second("k80", (2,)) == 0.0


def test_gpus_on_more_servers_than_needed_have_the_unconsolidated_sheet():
    """Two GPUs on two servers are unconsolidated, unless servers have one GPU each, or the table has no such sheet."""
    assert speed_of("quick").steps_per_second("v100", (2,)) == 16.0
    assert speed_of("quick").steps_per_second("v100", (1, 1)) == 12.0
    assert speed_of("quick", small_table(server_gpus=1)).steps_per_second("v100", (1, 1)) == 16.0
    assert speed_of("quick").steps_per_second("k80", (1, 1)) == 2.0


def test_two_jobs_on_the_same_gpus_have_the_speeds_of_their_pair():
    """Each has its own speed with the other one."""
    table = small_table()
    quick, steady = speed_of("quick", table), speed_of("steady", table)
    assert quick.steps_per_second_with(steady, "v100", (1,)) == 8.0
    assert steady.steps_per_second_with(quick, "v100", (1,)) == 3.0
    assert steady.steps_per_second_with(steady, "v100", (1,)) == 0.0
    assert quick.steps_per_second_with(steady, "v100", (2,)) is None


def test_co_located_speeds_across_tables_are_not_known():
    """The speed with a job of another table is None."""
    assert speed_of("quick").steps_per_second_with(speed_of("steady"), "v100", (1,)) is None


def test_training_proceeds_at_the_tables_speed_to_the_end():
    """The pace on a placement is the table's, isolated or co-located, and does not change."""
    table = small_table()
    quick, steady = TableTraining(table, "quick", 100.0), TableTraining(table, "steady", 50.0)
    one, two = Placement(("n0",), 1, "v100"), Placement(("n0", "n1"), 1, "v100")
    assert quick.pace(3.0, one) == Pace(10.0, math.inf)
    assert quick.pace(3.0, one, steady) == Pace(8.0, math.inf)
    assert quick.pace(3.0, two) == Pace(12.0, math.inf)
    assert steady.pace(3.0, two) == Pace(0.0, math.inf)


def test_the_known_speed_of_a_job_is_the_same_object_at_every_step():
    """Comparisons of jobs are then fast."""
    training = TableTraining(small_table(), "quick", 100.0)
    assert training.known(0.0) is training.known(50.0)


def spoil(keys, value):
    """The table with one value replaced, or removed."""
    data = table_json()
    found = data
    for key in keys[:-1]:
        found = found[key]
    if value is None:
        del found[keys[-1]]
    else:
        found[keys[-1]] = value
    return data


QUICK, STEADY = "('quick', 1)", "('steady', 1)"


@pytest.mark.parametrize(
    ("keys", "value", "named", "words"),
    [
        (("v100",), [1], ("v100",), "not an object"),
        (("v100", "quick"), {"null": 1.0}, ("v100", "quick"), "names no model"),
        (("v100", QUICK, "null"), None, ("v100", QUICK), "'null' is missing"),
        (("v100", QUICK, "null"), -1.0, ("v100", QUICK, "null"), "no speed"),
        (("v100", QUICK, "null"), True, ("v100", QUICK, "null"), "no speed"),
        (("v100", QUICK, QUICK), [1.0], ("v100", QUICK, QUICK), "no pair"),
        (("v100", QUICK, QUICK), [1.0, "x"], ("v100", QUICK, QUICK), "no speed"),
        (("v100", QUICK, "steady"), [1.0, 1.0], ("v100", QUICK, "steady"), "names no model"),
        pytest.param(("v100", QUICK, "null"), 10**400, ("v100", QUICK, "null"), "no speed", id="400 digits"),
        (("v100", "('quick', 0)"), {"null": 1.0}, ("v100", "('quick', 0)"), "names no model"),
        (("v100", QUICK, "('steady', 2)"), [1.0, 1.0], ("v100", QUICK, "('steady', 2)"), "1 GPUs with 2"),
        (("v100", QUICK, "('slow', 1)"), [1.0, 1.0], ("v100", QUICK, "('slow', 1)"), "no row of its own"),
        (
            ("v100", QUICK, STEADY),
            [8.0, 4.0],
            ("v100", QUICK, STEADY),
            "4.0 for the other, and the other's own row 3.0",
        ),
    ],
)
def test_a_faulty_table_is_refused_by_file_and_keys(tmp_path, keys, value, named, words):
    """The error names the file, the keys down to the fault, and a fix."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps(spoil(keys, value)))
    with pytest.raises(TableError) as caught:
        ThroughputTable.read(path)
    assert (caught.value.file, caught.value.keys) == (path, named)
    assert words in caught.value.fault
    assert caught.value.fix in str(caught.value)


def test_a_pair_may_be_in_one_row_only(tmp_path):
    """The speed of the other job is then known as well."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps(spoil(("v100", STEADY, QUICK), None)))
    assert ThroughputTable.read(path).colocated == small_table().colocated


def test_a_missing_file_or_one_without_json_is_refused(tmp_path):
    """Both raise a typed error that names the file."""
    (tmp_path / "t.json").write_text("{")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for name in ("t.json", "deep.json", "gone.json"):
        with pytest.raises(TableError, match=name):
            ThroughputTable.read(tmp_path / name)
