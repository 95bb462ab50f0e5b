"""Polls that reuse what earlier polls have made give what polls from scratch give, after any history."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.configuration.config import Intake
from metasched.core.reuse import FROM_SCRATCH
from metasched.shared_dir import published_status
from metasched.slurm.associations import Association, Associations, UsageLimits
from metasched.slurm.client import JobState, Reservation
from metasched.slurm.errors import SlurmError
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.from_scratch import check_every_poll, check_published
from tests.unit.site import ME, POLICIES, FakeSite

REQUESTS = (
    ("--gres=gpu:1", "min_gpus=1 max_gpus=4"),
    ("--gres=gpu:2", ""),
    ("--gres=gpu:2", "preempt=no"),
    ("--gres=gpu:1", "total_steps=5 model=net"),
    ("--gres=gpu:1", "no_such_key=1"),
    ("--gres=gpu:1 --array=0-2", ""),
    ("--gres=gpu:1 --time=1", "model=net"),
    ("--gres=gpu:1 --begin=now+30", ""),
    ("--gres=gpu:8", ""),
    ("--nodes=1", "preempt=suspend"),
)
EVENTS = (
    *("submit", "submit", "submit", "pass time", "pass time", "report", "report"),
    *("end", "cancel", "requeue", "release", "comment", "drain", "return", "reserve", "outage", "crash", "restart"),
    *("clock back", "takeover", "reload", "associations", "busy clock"),
)
histories = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 11)), min_size=6, max_size=25)
ROOT = Association("root", shares=1)


class History:
    """A site on which one event after the other happens, with polls in between that are all checked."""

    def __init__(self, base, policy):
        self.site = FakeSite(base, FakeSlurm(nodes=(FakeNode("n1"), FakeNode("n2"))), policy=policy)
        accounting = self.site.config.accounting.model_copy(update={"refresh_seconds": 2.0})
        self.site.config = self.site.config.model_copy(update={"accounting": accounting})
        self.site.start()
        self.steps = 0
        self.watch()

    def watch(self):
        self.latest = check_every_poll(self.site.controller, self.site.slurm)

    def poll(self):
        self.site.slurm.tick(max(min(self.site.controller.poll(), 5.0), 0.05))
        if self.latest() is not None:
            check_published(self.site.controller, self.latest(), self.site.base / "shared")

    def happen(self, event, number):  # noqa: C901, PLR0912  one case for each event
        site, slurm = self.site, self.site.slurm
        jobs = [job for job in slurm.jobs() if job.state not in {JobState.COMPLETED, JobState.CANCELLED}]
        job = jobs[number % len(jobs)].slurm_job_id if jobs else None
        match event:
            case "submit":
                options, tag = REQUESTS[number % len(REQUESTS)]
                site.add(*options.split(), tag=tag, seconds=(None, 8.0, 40.0)[number % 3])
            case "pass time":
                slurm.tick(float(number))
            case "report":
                self.report(number)
            case "end" if job:
                slurm.exit(job, number % 2)
            case "cancel" if job:
                slurm.cancel(job)
            case "requeue" if job:
                slurm.owner_requeue(job)
            case "release" if job:
                slurm.owner_release(job)
            case "comment" if job:
                slurm.owner_edit(job, comment=f"metasched min_gpus=1 max_gpus={number % 4}")
            case "drain":
                slurm.node_drain(f"n{1 + number % 2}", "broken")
            case "return":
                slurm.node_up(f"n{1 + number % 2}")
            case "reserve":
                begin = slurm.now + 5.0 * number
                slurm.reserve(Reservation(f"r{number % 2}", begin, begin + 60.0, frozenset({"n1"})))
            case "outage":
                with slurm.outage():
                    site.controller.poll()
            case "crash":
                slurm.crash()
            case "restart":
                slurm.restart(number / 4)
            case "clock back":
                slurm.now -= float(number)
            case "takeover":
                site.start()
                self.watch()
            case "reload":
                self.reload(number)
            case "associations":
                limits = UsageLimits({"": 1 + number})
                rows = (
                    ROOT,
                    Association("", parent="root", shares=1 + number),
                    Association("x", parent="root", group=limits, shares=1 + number),
                )
                slurm.accounting = Associations(rows) if number % 3 else None
            case "busy clock":
                for _ in range(number):
                    self.poll()

    def report(self, number):
        """Let the trainer of a running job report steps."""
        running = [record for record in self.site.store.live_jobs() if record.current and record.current.generation]
        if not running:
            return
        record = running[number % len(running)]
        self.steps += 1
        line = {"v": 1, "t": self.site.slurm.now, "kind": "steps", "step": self.steps, "steps": 1, "samples": 8}
        line |= {"seconds": 0.5 + number, "loss": 1.0 / self.steps, "world_size": 1}
        line |= {"global_batch": 8, "per_gpu_batch": 8, "accumulation": 1}
        path = self.site.base / "shared" / "reports" / record.uid / f"incarnation-{record.current.generation}.jsonl"
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def reload(self, number):
        limits = {"users": [ME], "non_preemptible_gpus": number, "live_jobs": 1 + number}
        intake = Intake(limits=(limits,)) if number % 2 else Intake()
        config = self.site.config.model_copy(update={"intake": intake})
        kind = POLICIES[("fifo", "las", "srtf")[number % 3]]
        self.site.controller.reconfigure(config, kind(kind.Parameters()))


def happened(base, policy, history):
    base.mkdir()
    past = History(base, policy)
    try:
        past.poll()
        for event, number in history:
            with suppress(SlurmError):  # what users do in Slurm while it is away, or to a job in another state
                past.happen(event, number)
            past.poll()
    finally:
        past.site.close()


@given(history=histories, policy=st.sampled_from(["fifo", "las"]))
@settings(max_examples=6 if settings().max_examples <= 30 else settings().max_examples)
def test_every_poll_equals_the_poll_from_scratch(tmp_path_factory, history, policy):
    """Whatever jobs, users, Slurm, the clock and the admin do: observation, state, plan and status are the same."""
    happened(tmp_path_factory.mktemp("history") / "site", policy, history)


def test_one_history_with_every_kind_of_event(tmp_path):
    """No kind of event is left to chance."""
    kinds = dict.fromkeys(EVENTS)
    happened(tmp_path / "site", "las", [("submit", n) for n in range(9)] + [(kind, 2) for kind in kinds] * 2)


def test_reports_and_limits_change_the_jobs_that_they_concern(tmp_path):
    """A speed that one job of a model reports is that of the others, too; new limits change waiting jobs."""
    model = ("submit", 6)  # without an end
    reports = [("pass time", 2), ("report", 0), ("report", 1), ("pass time", 1)]
    history = [model, model, model, *reports * 3, ("associations", 1), ("pass time", 3), ("associations", 2), *reports]
    happened(tmp_path / "site", "fifo", [*history, ("associations", 4), ("pass time", 3), ("pass time", 3)])


def test_an_unchanged_poll_makes_no_job_and_writes_no_jobs(tmp_path, monkeypatch):
    """A poll in which nothing happens builds no job, and replaces no file but the summary of the status."""
    site = FakeSite(tmp_path, round_seconds=1e6)
    for _ in range(3):
        site.add("--gres=gpu:1", tag="preempt=no", seconds=None)
        site.add("--gres=gpu:4", "--begin=now+1000")
    site.run(30)
    path = tmp_path / "shared" / published_status.JOBS_FILE_NAME
    written, states = path.stat().st_ino, []
    monkeypatch.setattr("metasched.daemon.described_jobs.job_of", None)
    monkeypatch.setattr("metasched.store.live_records.job_of", None)
    build = site.controller._state_builder.build
    monkeypatch.setattr(site.controller._state_builder, "build", lambda *a: states.append(build(*a)) or states[-1])
    before = site.status().published
    site.run(10)
    assert path.stat().st_ino == written
    assert site.status().published > before
    assert len({id(state.version) for state in states}) == 1
    site.close()


def test_a_job_over_the_limit_is_looked_at_once(tmp_path, monkeypatch):
    """While nothing changes, no poll decides again who is taken in, nor looks again whether the others are held."""
    site = FakeSite(tmp_path, round_seconds=1e6)
    site.controller.reconfigure(site.config.model_copy(update={"intake": Intake(live_jobs=2)}), site.controller.policy)
    for _ in range(5):
        site.add("--gres=gpu:4", "--begin=now+1000")
    site.run(20)
    monkeypatch.setattr("metasched.intake.job_intake.admission", None)
    monkeypatch.setattr(site.controller._intake, "_ensure_held", None)
    site.run(10)
    assert [one.jobs for one in site.status().deferred] == [3]
    site.close()


def test_a_run_that_grows_older_changes_no_other_job(tmp_path, monkeypatch):
    """Of the jobs of the snapshot only those are other objects in the next poll whose service has grown."""
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)), round_seconds=1e6)
    runs = site.add("--gres=gpu:4", tag="preempt=no", seconds=None)
    for _ in range(3):
        site.add("--gres=gpu:4")
    site.run(20)
    states, observations, observer = [], [], site.controller._observer
    build, observe = site.controller._state_builder.build, observer.observe
    monkeypatch.setattr(site.controller._state_builder, "build", lambda *a: states.append(build(*a)) or states[-1])
    monkeypatch.setattr(observer, "observe", lambda now: observations.append(observe(now)) or observations[-1])
    monkeypatch.setattr("metasched.slurm.leaked_gpus._held", None)
    monkeypatch.setattr("metasched.observe.observer._shared_records", None)
    site.run(3)
    first, last = (state.snapshot.jobs for state in (states[0], states[-1]))
    changed = [after.slurm_job_id for before, after in zip(first, last, strict=True) if before is not after]
    assert changed == [runs]
    assert observations[0].shared_records is observations[-1].shared_records
    site.close()


def test_the_switch_makes_every_poll_from_scratch(tmp_path, monkeypatch):
    """With the switch, no description outlives its poll."""
    monkeypatch.setenv(FROM_SCRATCH, "1")
    site = FakeSite(tmp_path)
    site.add("--gres=gpu:4", "--begin=now+1000")
    site.run(5)
    builder = site.controller._state_builder
    versions, build = [], builder.build
    monkeypatch.setattr(builder, "build", lambda *a: versions.append((state := build(*a)).version) or state)
    site.run(3)
    assert len({id(version) for version in versions}) == len(versions) > 1
    site.close()


@pytest.mark.parametrize("scratch", ["0", "1"])
def test_waiting_and_service_grow_between_publications_of_jobs(tmp_path, monkeypatch, scratch):
    """The reader computes what the passing of time adds, so that the file need not be written."""
    monkeypatch.setenv(FROM_SCRATCH, scratch)
    site = FakeSite(tmp_path, FakeSlurm(nodes=(FakeNode("n1"),)), round_seconds=1e6)
    runs = site.add("--gres=gpu:4", tag="preempt=no", seconds=None)
    waits = site.add("--gres=gpu:4")
    site.run(20)
    before = {job.slurm_job_id: job for job in site.status().jobs}
    since = site.status().published
    site.run(10)
    after = {job.slurm_job_id: job for job in site.status().jobs}
    passed = site.status().published - since
    assert after[runs].attained_service - before[runs].attained_service == pytest.approx(4 * passed)
    assert after[runs].ran_seconds - before[runs].ran_seconds == pytest.approx(passed)
    assert after[runs].waited_seconds == before[runs].waited_seconds
    assert after[waits].waited_seconds - before[waits].waited_seconds == pytest.approx(passed)
    site.close()
