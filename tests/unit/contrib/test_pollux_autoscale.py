"""The reproduction of Pollux's auto-scaling, on a made-up application."""

import pytest

from contrib.reproductions.pollux_autoscale import compared, train
from metasched.simulator.generate.pollux import synthetic_profiles


@pytest.fixture(scope="module")
def runs():
    profile = synthetic_profiles()["cifar10"]
    return [train(profile, by_goodput=by_goodput, most_nodes=4) for by_goodput in (True, False)]


def test_scaling_by_goodput_is_more_efficient_and_costs_less(runs):
    """Larger batches come when the noise has grown; by throughput they come at once."""
    goodput, throughput = runs
    assert goodput.efficiency > throughput.efficiency
    assert compared(goodput, throughput)["cost"] < 0


def test_every_number_of_nodes_is_paid_for(runs):
    """The cost is the mean number of nodes times the hours."""
    for run in runs:
        assert 1 <= run.node_hours / run.hours <= 4
        assert len(run.nodes) == 10
        assert run.restarts >= 1
