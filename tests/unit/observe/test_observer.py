"""The observe step of a poll."""

from metasched.observe.observer import Observer
from tests.unit.site import WRITES, FakeSite


def test_observing_writes_nothing(tmp_path):
    """A new job is found, and neither Slurm nor the store is changed before intake."""
    site = FakeSite(tmp_path)
    running = site.add("--gres=gpu:1", seconds=1000)
    site.run(5)
    new = site.add("--gres=gpu:1")
    other = site.slurm.add("--gres=gpu:1", user="somebody")
    calls, records = len(site.slurm.calls), site.store.live_jobs()
    observation = Observer(site.config, site.slurm, site.store, site.slurm.settings()).observe(site.slurm.now)
    assert [job.slurm_job_id for job in observation.new.values()] == [new]
    assert [job.slurm_job_id for job in observation.ours.values()] == [running, new]
    assert [job.slurm_job_id for job in observation.others] == [other]
    assert WRITES.isdisjoint(name for name, _ in site.slurm.calls[calls:])
    assert site.store.live_jobs() == records
    site.close()


def test_a_uid_is_new_with_each_observation_until_intake_records_it(tmp_path):
    """Intake gives the uid of the same poll to the store and to Slurm; later observations find it there."""
    site = FakeSite(tmp_path)
    site.add("--gres=gpu:1")
    observer = Observer(site.config, site.slurm, site.store, site.slurm.settings())
    first, second = (set(observer.observe(site.slurm.now).new) for _ in range(2))
    assert first != second
    site.controller.poll()
    observation = observer.observe(site.slurm.now)
    assert not observation.new
    assert observation.ours.keys() == observation.records.keys()
    site.close()
