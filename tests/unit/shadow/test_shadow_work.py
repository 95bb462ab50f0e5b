"""Shadow policies on the rounds of a daemon with a fake Slurm."""

import json

import pytest

from metasched.configuration.config import ConfigError, load
from metasched.core.policy import Policy, PolicyState, installed_policies
from metasched.forecast.what_if_result import WhatIfTask
from metasched.forecast.what_if_run import what_if
from metasched.replay.replay import replay
from metasched.shadow.__main__ import ShadowWork
from metasched.shadow.result_file import decode_shadows
from metasched.simulator.records import Settings
from metasched.store import Store
from policies.baselines.fifo import Fifo
from policies.baselines.las import Las, LasParameters
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite

SETTINGS = Settings(round_seconds=10.0)


class Budget:
    """Time without end, unless a test ends it."""

    used = 0.0
    left = True

    def proceed(self):
        return self.left


class Broken(Policy):
    """A policy whose code fails."""

    name = "broken"

    def decide(self, snapshot, state):
        raise ZeroDivisionError("no")


class Counting(Fifo):
    """FIFO with a state that counts its rounds."""

    name = "counting"

    def decide(self, snapshot, state):
        decision, _ = super().decide(snapshot, state)
        return decision, PolicyState(1, {"rounds": state.data.get("rounds", 0) + 1})


@pytest.fixture
def site(tmp_path):
    made = FakeSite(tmp_path, FakeSlurm([FakeNode("n1", gpus=4, cpus=16)]))
    yield made
    made.close()


def busy(site):
    """One job runs on all GPUs since some time, and another one waits."""
    site.add("--gres=gpu:4")
    site.run(25)
    site.add("--gres=gpu:4")
    site.run(15)


def work(site, **policies):
    return ShadowWork(policies, SETTINGS, 100)


def records(site, made, budget=None):
    with Store.open(site.store.path, read_only=True) as store:
        return decode_shadows(made(store, budget or Budget())).records


def test_a_shadow_policy_tells_what_it_would_give_to_others(site):
    """LAS gives the GPUs to the job without service, which the live FIFO lets wait; FIFO itself differs in nothing."""
    busy(site)
    las = Las(LasParameters(queue_thresholds_gpu_seconds=(10.0,), promote_knob=None))
    other, same = records(site, work(site, las=las, fifo=Fifo()))
    first, second = (job.uid for job in site.store.live_jobs())
    assert (other.gpus, other.would_run, other.would_not_run, other.live) == (4, (second,), (first,), "fifo")
    assert (same.gpus, same.would_run, same.would_not_run) == (0, (), ())
    assert same.jct == same.live_jct == other.live_jct
    assert same.worst_rho == same.live_worst_rho


def test_an_error_is_kept_and_other_shadows_decide(site):
    """The row of a policy that fails names the error."""
    busy(site)
    broken, fine = records(site, work(site, broken=Broken(), fifo=Fifo()))
    assert (broken.gpus, broken.error) == (None, "ZeroDivisionError: no")
    assert (fine.gpus, fine.error) == (0, None)


def test_a_shadow_carries_its_own_state(site):
    """The state of a shadow policy goes on from round to round, while the cluster is what it is."""
    busy(site)
    made = work(site, counting=Counting())
    for expected in (1, 2):
        records(site, made)
        assert made._states["counting"].data == {"rounds": expected}


def test_a_simulation_that_takes_too_long_is_left_out(site):
    """The decision is kept, without completion times."""
    busy(site)
    budget = Budget()
    budget.left = False
    (found,) = records(site, work(site, fifo=Fifo()), budget)
    assert (found.gpus, found.jct, found.worst_rho) == (0, None, None)
    assert "takes more than" in found.error


def test_the_live_decisions_are_the_same_with_shadows_and_what_ifs(tmp_path):
    """The same history gives the same targets and reasons, and the same replay, with and without both of them."""
    simulation = {"round_seconds": 10.0, "start_seconds": 1.0, "restart_seconds": 1.0}

    def history(name, *, watched):
        base = tmp_path / name
        base.mkdir()
        site = FakeSite(base, FakeSlurm([FakeNode("n1", gpus=4, cpus=16)]), policy="las")
        made = work(site, broken=Broken(), fifo=Fifo())
        found = []
        for _ in range(4):
            site.add("--gres=gpu:2")
            site.run(12)
            if watched:
                site.store.commit_shadows(records(site, made))
                task = WhatIfTask(str(site.store.path), "", ("srtf",), "ann", site.slurm.now, simulation, 100)
                assert what_if(task).round == site.controller.round_number
            order = {job.uid: n for n, job in enumerate(site.store.live_jobs())}
            decided = site.store.decisions_of(site.controller.round_number)
            found.append(sorted((order[one.uid], one.granted, one.reason.code) for one in decided))
        replayed = list(replay(site.store, installed_policies(), 100))
        assert len(replayed) > len(found)
        assert [one.differences for one in replayed] == [()] * len(replayed)
        site.close()
        return found

    assert history("with", watched=True) == history("without", watched=False)


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        (["themsi"], "did you mean 'themis'"),
        (["las:num_queue=3"], "no such key"),
        (["las:nonsense"], "is not KEY=VALUE"),
        (["las", "las"], "stands there twice"),
    ],
)
def test_wrong_shadow_policies_are_named_with_the_fix(tmp_path, policies, words):
    """The daemon refuses the configuration, and names the key."""
    path = tmp_path / "metasched.toml"
    paths = f'[paths]\nstate = "{tmp_path}"\nshared = "{tmp_path}"\n'
    path.write_text(f"{paths}[shadow]\npolicies = {json.dumps(policies)}\n")
    with pytest.raises(ConfigError, match=words) as caught:
        load(path, installed_policies())
    assert "[shadow] policies" in str(caught.value)
