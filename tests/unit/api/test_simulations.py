import pytest

from metasched.api import compare, simulate
from metasched.api.simulations import NotInstalledError
from metasched.core.policy import DuplicatePolicyError, Policy
from metasched.core.policy_text import PolicyTextError
from metasched.simulator.scenario import ScenarioError
from policies.baselines.fifo import Fifo
from tests.small_scenario import JOBS, SCENARIO


class OwnPolicy(Fifo):
    """A policy that is no entry point; it decides as ``fifo``."""

    name = "own_policy"


@pytest.fixture
def scenario(tmp_path):
    """The path of a scenario with a long and a short job on one node."""
    (tmp_path / "jobs.txt").write_text(JOBS)
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return path


def test_one_simulation_has_metrics_and_jobs(scenario):
    """Under FIFO the second job waits for the first."""
    seen = []
    found = simulate(scenario, "fifo", progress=lambda done, total: seen.append((done, total)))
    assert found.metrics["unfinished"] == 0
    first, second = found.jobs
    assert second.started >= first.finished
    assert seen[-1] == (2, 2)
    assert "jct_mean" in found._repr_html_()


def test_a_policys_class_is_simulated_as_its_name_is(scenario):
    """A policy needs no entry point; its class stands beside installed policies."""
    table = compare(scenario, [OwnPolicy, "fifo"])
    frame = table.to_pandas()
    assert list(frame["policy"]) == ["own_policy", "fifo"]
    assert frame["jct_mean"][0] == frame["jct_mean"][1]


def test_results_on_disk_are_not_made_again(scenario, tmp_path):
    """With ``out`` each simulation is one file; a second call reads them."""
    told = []
    first = compare(scenario, ["fifo", "las"], loads=[1, 2], out=tmp_path / "out")
    again = compare(scenario, ["fifo", "las"], loads=[1, 2], out=tmp_path / "out", progress=lambda *n: told.append(n))
    assert [one.result for one in first] == [one.result for one in again]
    assert told == [(4, 4)]


def test_mistakes_are_typed_errors(scenario, tmp_path):
    """Each error names what is wrong."""
    with pytest.raises(ScenarioError, match=r"nothing\.toml"):
        simulate(tmp_path / "nothing.toml")
    with pytest.raises(PolicyTextError, match="fifo"):
        simulate(scenario, "fifoo")
    with pytest.raises(NotInstalledError, match="own_policy"):
        compare(scenario, [OwnPolicy], out=tmp_path / "out")
    with pytest.raises(ValueError, match="out=DIR"):
        compare(scenario, ["fifo"], processes=2)
    duplicate = type("Other", (OwnPolicy,), {"name": "fifo"})
    with pytest.raises(DuplicatePolicyError, match="fifo"):
        simulate(scenario, duplicate)


def test_a_policy_is_a_class_of_policies():
    """The public contract is the one that the tutorial uses."""
    assert issubclass(OwnPolicy, Policy)
