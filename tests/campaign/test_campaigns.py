"""Campaigns of faults: their lists are reproducible, and a bounded number of simulated ones breaks no invariant."""

from itertools import islice

import pytest

from metasched.core.reuse import FROM_SCRATCH
from tests.campaign import faults
from tests.campaign.simulated import POLICY_NAMES, Simulated

CAMPAIGNS = 24


def red(directory, seeds, **options):
    """The problems of the simulated campaigns of those seeds."""
    found = {}
    for seed in seeds:
        base = directory / str(seed)
        base.mkdir()
        if problems := Simulated(seed, base, **options).run():
            found[seed] = problems
    return found


def test_a_seed_gives_the_same_faults_and_trainings():
    """A longer campaign begins with the faults of a shorter one; another seed gives others."""
    short, long = faults.draw_faults(7, 200.0), faults.draw_faults(7, 1200.0)
    assert long[: len(short)] == short
    assert faults.draw_faults(8, 200.0) != short
    assert list(islice(faults.draw_shapes(7), 20)) == list(islice(faults.draw_shapes(7), 20))


def test_a_long_campaign_has_every_kind_of_fault_and_every_policy():
    """No victim is left out."""
    drawn = faults.draw_faults(1, 1200.0)
    assert {fault.kind for fault in drawn} == {*faults.KINDS, faults.POLICY}
    assert {faults.policy_of(fault.draw) for fault in drawn if fault.kind == faults.POLICY} == set(faults.POLICIES)


@pytest.mark.parametrize("seed", range(3))
def test_polls_from_scratch_decide_alike(tmp_path, monkeypatch, seed):
    """A campaign has the same events, whether its polls reuse what earlier polls have made or not."""
    found = []
    for scratch in ("0", "1"):
        monkeypatch.setenv(FROM_SCRATCH, scratch)
        base = tmp_path / scratch
        base.mkdir()
        campaign = Simulated(seed, base)
        problems = campaign.run()
        found.append((problems, campaign.events, campaign.slurm.calls, campaign.slurm.now))
    assert found[0][:2] == found[1][:2]
    assert found[0][-1] == found[1][-1]


def test_no_job_is_lost_or_fails_under_faults(tmp_path):
    """Gangs stay whole, no GPU is given twice, and no action is repeated for ever."""
    assert len(POLICY_NAMES) * 4 == CAMPAIGNS
    assert red(tmp_path, range(CAMPAIGNS), loses_gres=False, kills_late=False) == {}


@pytest.mark.parametrize(("fault", "seeds"), [("loses_gres", (2, 3, 6)), ("kills_late", (2, 36, 48))])
def test_no_job_fails_that_slurm_failed(tmp_path, fault, seeds):
    """A run whose trainer never started, or which Slurm ended for its predecessor, is put back."""
    others = dict.fromkeys({"loses_gres", "kills_late"} - {fault}, False)
    assert red(tmp_path, seeds, **others) == {}


def test_jobs_end_although_slurm_leaks_gpus(tmp_path):
    """Most GPUs stay allocated without a job; jobs run on the others until the admin does what the status says."""
    assert red(tmp_path, (2, 20), leaks_gpus=True, kills_late=False) == {}
