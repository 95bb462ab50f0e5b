"""The baselines of Themis's comparison (section 6.1): apps are served where others serve jobs."""

from dataclasses import dataclass

import pytest

from metasched.capacity.capacity_pool import CapacityPool
from metasched.core.apps import App, Bracket, Phase, TunerSettings
from metasched.scheduling.engine import run_round
from policies.baselines.app_groups import app_groups
from policies.baselines.gandiva_apps import GandivaApps
from policies.baselines.las import Las, LasParameters
from policies.baselines.optimus import Optimus, OptimusParameters
from policies.baselines.remaining_time import RemainingTime
from policies.baselines.srsf import Srsf
from policies.baselines.srtf import ShortestParameters, Srtf
from tests.builders import job, linear, nodes, running, snapshot


@dataclass(frozen=True)
class Spread:
    """A linear speed, divided by a factor on several nodes."""

    slowdown: float

    def steps_per_second(self, gpu_type, spread):
        return sum(spread) / (self.slowdown if len(spread) > 1 else 1.0)

    def steps_per_second_with(self, other, gpu_type, spread):
        return None


def member(app, task, left=100, gpus=1, high=1, **fields):
    facts = {"app": f"array:{app}", "speed": linear(1.0)} | fields
    return job(f"{app}_{task}", gpus, 1, high, left=left, **facts)


def amounts(policy, *jobs, the_nodes=None, **fields):
    """GPUs by app."""
    found = {}
    for uid, place in run_round(snapshot(jobs, the_nodes or nodes(1, 4), **fields), policy, None).targets.items():
        found[uid.partition("_")[0]] = found.get(uid.partition("_")[0], 0) + place.gpus
    return found


def test_las_serves_the_app_with_the_least_service():
    """An app with much service behind it waits, whichever of its jobs has none."""
    served = [member("a", task, attained={"v100": 1000.0 * task}) for task in range(4)]
    others = [member("b", task, attained={"v100": 100.0}) for task in range(3)]
    assert amounts(Las(LasParameters(by_app=True)), *served, *others) == {"b": 3, "a": 1}


def test_srtf_and_srsf_count_an_app_as_a_whole():
    """Four jobs of 100 s are 100 s, and 400 GPU-seconds; one of 200 s is both."""
    many, one = [member("a", task) for task in range(4)], member("b", 0, left=200, gpus=1)
    parameters = ShortestParameters(by_app=True)
    assert amounts(Srtf(parameters), *many, one) == {"a": 4}
    assert amounts(Srsf(parameters), *many, one) == {"a": 3, "b": 1}


def test_later_phases_count():
    """Of four trials in the first of three phases: by Eq. 2, the present jobs, then two, then one."""
    tuner = TunerSettings("halving", {"steps": 400.0})
    trials = [member("a", task, left=400, high=4, tuner=tuner) for task in range(4)]
    phases = (Phase(4, 100.0, 1), Phase(2, 200.0, 2), Phase(1, 400.0, 4))
    app = App("array:a", "a", "ann", tuple(one.uid for one in trials), 0.0, 0.0, 0.0)
    app = App(**{name: getattr(app, name) for name in app.__slots__} | {"brackets": (Bracket(app.members, phases, 0),)})
    shot = snapshot(trials, apps=(app,))
    (group,) = app_groups(shot)
    known = RemainingTime(CapacityPool(shot))
    assert group.remaining_gpu_seconds(known) == pytest.approx(4 * 100 + 2 * 100 + 200)
    assert group.remaining_seconds(known) == pytest.approx(100 + 100 / 2 + 200 / 4)


def test_apps_of_unknown_work_come_last():
    """One job without a total is enough."""
    unknown = [member("a", 0), member("a", 1, left=None)]
    longer = [member("b", task, left=1e6) for task in range(3)]
    assert amounts(Srtf(ShortestParameters(by_app=True)), *unknown, *longer) == {"b": 3, "a": 1}


def test_optimus_gives_each_gpu_to_the_app_that_grows_most():
    """Equal parts for apps that scale alike, however many jobs they have."""
    many = [member("a", task) for task in range(8)]
    one = member("b", 0, gpus=4, high=4)
    assert amounts(Optimus(OptimusParameters(by_app=True)), *many, one) == {"a": 2, "b": 2}


def test_optimus_serves_apps_of_unknown_speed_up_to_their_request():
    """They count as linear there."""
    known = member("a", 0, gpus=1, high=4)
    unknown = member("b", 0, gpus=2, high=4, speed=None)
    assert amounts(Optimus(OptimusParameters(by_app=True)), known, unknown) == {"a": 2, "b": 2}


def test_gandiva_serves_the_app_that_several_nodes_slow_down_most():
    """A running job keeps its GPUs."""
    calm, picky = member("a", 0, speed=Spread(1.0)), member("b", 0, speed=Spread(1.3))
    assert amounts(GandivaApps(), calm, picky, the_nodes=nodes(1, 1)) == {"b": 1}
    assert amounts(GandivaApps(), running(calm, "v100-0"), picky, the_nodes=nodes(1, 1)) == {"a": 1}
