"""Co-located speeds that were not measured, estimated from measured ones."""

import json
import zlib

import numpy as np
import pytest

from metasched.configuration.config import ConfigError, Sharing, load
from metasched.core.model import Placement, Snapshot
from metasched.core.policy import installed_policies
from metasched.learning.throughput_learning import ThroughputLearning
from metasched.replay.snapshot_codec import decode, encode
from metasched.shared_dir.reports import StepsReport
from metasched.store import JobRecord, SpeedRecord, Store
from metasched.store.report_rows import ReportFile
from metasched.throughput.fingerprints import REFERENCES, Fingerprints
from metasched.throughput.measured_speed import Fingerprint, MeasuredSpeed
from metasched.throughput.throughput_table import ThroughputTable
from policies.baselines.fifo import Fifo
from tests.builders import job, running
from tests.unit.gavel_tables import write_table
from tests.unit.site import FakeSite

UNTRIED = 0.6
HERE = ("v100", (1,))
NAMES = tuple(f"ann/m{i:02}" for i in range(16))
_CHANCE = np.random.default_rng(1)
_SUFFERS, _PUSHES = ({name: _CHANCE.uniform(0.1, 0.9) for name in NAMES} for _ in range(2))
ALONE = {name: number + 1.0 for number, name in enumerate(NAMES)}
TOGETHER = [(a, b) for i, a in enumerate(NAMES[:-1]) for b in NAMES[: i + 1] if _CHANCE.random() < 0.5]
"""Pairs that have shared a GPU: half of all, and none with the last subject."""
MEASURED = {pair for a, b in TOGETHER for pair in ((a, b), (b, a))}


def truth(one, other):
    """The true fraction of its speed that a job retains with a co-runner; a matrix of rank two."""
    return 1 - _SUFFERS[one] * _PUSHES[other]


def learn(store, one, other, part, at=0.0):
    store.set_speed(SpeedRecord(one, *HERE, None, ALONE[one], at))
    store.set_speed(SpeedRecord(one, *HERE, other, part * ALONE[one], at))


def part(learning, one, other):
    """The estimated fraction of its speed that a job retains with a co-runner."""
    found = learning.speed(one).steps_per_second_with(learning.speed(other), *HERE)
    return None if found is None else found / ALONE[one]


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "m.db") as opened:
        for name in NAMES:
            opened.set_speed(SpeedRecord(name, *HERE, None, ALONE[name], 0.0))
        for one, other in sorted(MEASURED):
            learn(opened, one, other, truth(one, other))
        yield opened


def test_a_pair_that_was_not_measured_is_estimated(store):
    """The error is far below that of one fraction for all pairs; measured pairs count; a restart changes nothing."""
    learning, again = ThroughputLearning(store, UNTRIED), ThroughputLearning(store, UNTRIED)
    pairs = [(a, b) for a in NAMES[:-1] for b in NAMES[:-1]]
    untried = [pair for pair in pairs if pair not in MEASURED]
    error = np.mean([abs(part(learning, *pair) - truth(*pair)) for pair in untried])
    best_constant = min(np.mean([abs(c - truth(*pair)) for pair in untried]) for c in np.linspace(0, 1, 101))
    assert error < best_constant / 3
    for pair in MEASURED:
        assert part(learning, *pair) == pytest.approx(truth(*pair))
    assert [part(again, *pair) for pair in pairs] == [part(learning, *pair) for pair in pairs]


@pytest.mark.parametrize("untried", [UNTRIED, None])
def test_without_co_located_measurements_the_default_fraction_holds(store, untried):
    """In both orders of a pair; measured subjects are estimated, even without a default fraction."""
    learning = ThroughputLearning(store, untried)
    assert part(learning, NAMES[-1], NAMES[0]) == untried
    assert part(learning, NAMES[0], NAMES[-1]) == untried
    one, other = next((a, b) for a in NAMES[:-1] for b in NAMES[:-1] if (a, b) not in MEASURED)
    assert part(learning, one, other) == pytest.approx(truth(one, other), abs=0.15)
    assert part(learning, one, other) != untried


def test_a_subject_that_is_no_reference_is_represented_by_the_closest():
    """A subject with which no reference was measured counts, as a co-runner, as the reference most like it."""
    kept = {
        f"r{i}": {("v100", 1, f"r{j}"): 0.3 + 0.4 * ((i + j) % 2) for j in range(REFERENCES)} for i in range(REFERENCES)
    }
    kept["new"] = {column: 0.3 + 0.4 * (j % 2) for j, column in enumerate(kept["r0"]) if j < 6}
    kept["r1"] = {**kept["r1"], ("v100", 1, "new"): 0.9}
    found = Fingerprints.from_measurements(kept, {})
    assert found.of("new").reference == "r0"
    assert {column[2] for column in found.of("new").fractions} == {f"r{i}" for i in range(REFERENCES)}
    assert found.of("else") is None


def test_fingerprints_are_recomputed_only_when_a_measurement_changes(store, monkeypatch):
    """Reports of nearly the same speeds leave all estimates unchanged; a change of one pair renews them."""
    made = []
    make = Fingerprints.from_measurements
    monkeypatch.setattr(Fingerprints, "from_measurements", lambda *args: made.append(args) or make(*args))
    for uid in ("a", "b"):
        store.add_job(JobRecord(uid, uid, "job", "ann", 0.0))
        store.release(uid, 1, Placement(("n1",), 1, "v100"), 0.0)
        store.run_started(uid, 1, 0.0, Placement(("n1",), 1, "v100"))
    learning = ThroughputLearning(store, UNTRIED)
    pair = next((a, b) for a, b in sorted(MEASURED) if a != b)
    subjects = dict(zip("ab", pair, strict=True))
    jobs = [running(job(uid), "n1").evolve(co_runner=other) for uid, other in (("a", "b"), ("b", "a"))]
    learning.learn(jobs, subjects, (), {}, 10.0)
    before = {name: learning.speed(name) for name in NAMES}
    assert len(made) == 1

    def report(at, speed):
        line = StepsReport(
            at=at, step=int(at), steps=1000, samples=1, seconds=1000 / speed, loss=None, world_size=1, global_batch=1,
            per_gpu_batch=1, accumulation=1,
        )  # fmt: skip
        store.commit_reports(store.report_files("a").get(1, ReportFile("a", 1, run=1)), [line], latest=True)
        learning.learn(jobs, subjects, {"a"}, {}, at + 1)

    was = before[pair[0]].steps_per_second_with(before[pair[1]], *HERE)
    report(20000.0, 1.02 * was)
    after = {name: learning.speed(name) for name in NAMES}
    assert len(made) == 1
    assert [name for name in NAMES if after[name] is not before[name]] == [pair[0]]
    assert after[pair[0]].fingerprint is before[pair[0]].fingerprint
    report(40000.0, 0.2 * was)
    assert learning.speed(pair[0]).fingerprint is not before[pair[0]].fingerprint
    assert len(made) == 2


@pytest.mark.parametrize(("factor", "same"), [(1.04, True), (1.06, False)])
def test_a_speed_remains_the_same_object_while_its_estimates_change_by_less_than_the_tolerance(factor, same):
    """The tolerance is 5 %."""
    speed = MeasuredSpeed("a", fingerprint=Fingerprint("b", {("v100", 1, "b"): 0.5}))
    assert (speed.estimated(Fingerprint("b", {("v100", 1, "b"): factor * 0.5})) is speed) == same
    assert speed.estimated(Fingerprint("c", {("v100", 1, "b"): 0.5})) is not speed


def test_measurements_with_an_ended_co_runner_are_dropped(store):
    """The store drops them, too, so that a restarted daemon knows the same."""
    learn(store, NAMES[0], "job", 0.5, at=1.0)
    learning = ThroughputLearning(store, UNTRIED)
    assert part(learning, NAMES[0], "job") == 0.5
    learning.speed("job")
    learning.forget("job")
    assert learning.speed(NAMES[0]).colocated == ThroughputLearning(store, UNTRIED).speed(NAMES[0]).colocated


def test_jobs_of_a_tables_models_are_estimated_at_once(tmp_path):
    """Measurements of such jobs take precedence over the table's."""
    table = ThroughputTable.read(write_table(tmp_path / "t.json"))
    with Store.open(tmp_path / "m.db") as store:
        learning = ThroughputLearning(store, UNTRIED, table)
        for subject in ("ann/quick", "bob/steady"):
            store.set_speed(SpeedRecord(subject, *HERE, None, 1.0, 0.0))
        learning = ThroughputLearning(store, UNTRIED, table)
        quick, steady = learning.speed("ann/quick"), learning.speed("bob/steady")
        assert (quick.steps_per_second_with(steady, *HERE), steady.steps_per_second_with(quick, *HERE)) == (0.8, 0.75)
        assert quick.steps_per_second_with(learning.speed("quick"), *HERE) == 0.6  # a job's own subject names no model
        store.set_speed(SpeedRecord("ann/quick", *HERE, "eve/steady", 0.1, 1.0))
        learning = ThroughputLearning(store, UNTRIED, table)
        quick = learning.speed("ann/quick")
        assert quick.steps_per_second_with(learning.speed("bob/steady"), *HERE) == pytest.approx(0.1)
        assert quick.steps_per_second_with(learning.speed("cid/quick"), *HERE) == 0.6


def test_estimates_survive_the_snapshot_codec(store):
    """A recorded round is decided again with the estimates of that time; a shared speed is written once."""
    learning = ThroughputLearning(store, UNTRIED)
    jobs = [
        job(
            f"{i}",
            speed=learning.speed(NAMES[i % 3]),
        )
        for i in range(6)
    ]
    read = decode(encode(Snapshot(0.0, 1, 60.0, (), tuple(jobs)))).jobs
    assert read[0].speed is read[3].speed
    for one, was in zip(read, jobs, strict=True):
        assert one.speed.fingerprint == was.speed.fingerprint
        assert [one.speed.steps_per_second_with(b.speed, *HERE) for b in read] == [
            was.speed.steps_per_second_with(b.speed, *HERE) for b in jobs
        ]


def test_older_recordings_are_read(store):
    """In older recordings every job has its speed in full, and there are no fingerprints."""
    speed = ThroughputLearning(store, UNTRIED).speed(NAMES[0])
    jobs = tuple(
        job(
            f"{i}",
            speed=speed,
        )
        for i in range(2)
    )
    content = json.loads(zlib.decompress(encode(Snapshot(0.0, 1, 60.0, (), jobs))))
    first, second = content["snapshot"]["jobs"]
    second["speed"] = first["speed"] = {key: first["speed"][key] for key in ("subject", "alone", "beside", "untried")}
    one, other = decode(zlib.compress(json.dumps(content).encode())).jobs
    assert one.speed is other.speed
    assert one.speed.fingerprint is None
    assert one.speed.colocated == speed.colocated


def test_the_daemon_uses_a_table_from_the_next_reload_on(tmp_path):
    """The next snapshot has its estimates for jobs whose tags name one of its models."""
    site = FakeSite(tmp_path)
    for tag in ("model=quick", "model=else"):
        site.add("--gres=gpu:1", tag=tag, seconds=1000)

    def seen():
        site.run(30)
        jobs = decode(site.store.snapshot(site.store.recent_rounds(1)[0].round)).jobs
        return sorted(job.speed.fingerprint.reference for job in jobs if job.speed.fingerprint)

    assert seen() == []
    sharing = Sharing(reference_table=str(write_table(tmp_path / "t.json")))
    site.controller.reconfigure(site.config.model_copy(update={"sharing": sharing}), Fifo())
    assert seen() == ["quick"]
    site.close()


@pytest.mark.parametrize("text", [None, "[]", '{"v100": {"quick": {}}}'])
def test_a_faulty_table_is_refused(tmp_path, text):
    """The error names the file and the key, and the fix."""
    path, table = tmp_path / "m.toml", tmp_path / "t.json"
    if text is not None:
        table.write_text(text)
    path.write_text(f'[paths]\nstate = "/s"\nshared = "/t"\n[sharing]\nreference_table = "{table}"\n')
    with pytest.raises(ConfigError, match=r"sharing.*reference_table: .*t\.json.*; (give|write)"):
        load(path, installed_policies())
    write_table(table)
    assert load(path, installed_policies()).sharing.table.models == ("quick", "steady")
