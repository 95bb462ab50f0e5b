"""Racks from what ``scontrol show topology`` prints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.slurm.errors import MalformedOutputError
from metasched.slurm.topology import parse_racks

# As Slurm 22.05.8 (Debian 12) prints a tree; 23.11 and 25.05 blocks, by their documentation.
TREE_22 = """\
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[3-4],gpu-[08-09]
SwitchName=root Level=1 LinkSpeed=1 Nodes=n[1-4],gpu-[08-09] Switches=s[1-2]
"""
BLOCK_23 = """\
BlockName=b1 BlockIndex=0 Nodes=n[1-2]
BlockName=b2 BlockIndex=1 Nodes=n[3-4]
"""
BLOCK_25 = """\
BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2
AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4
"""


def test_the_rack_of_a_node_is_its_leaf_switch():
    """Switches of higher levels are no racks."""
    assert parse_racks(TREE_22) == {
        "n1": "s1", "n2": "s1", "n3": "s2", "n4": "s2", "gpu-08": "s2", "gpu-09": "s2",
    }  # fmt: skip


@pytest.mark.parametrize("text", [BLOCK_23, BLOCK_25])
def test_the_rack_of_a_node_is_its_block(text):
    """Aggregated blocks are no racks."""
    assert parse_racks(text) == {"n1": "b1", "n2": "b1", "n3": "b2", "n4": "b2"}


@pytest.mark.parametrize("text", ["", "\n", "RingName=r1 RingIndex=0 Nodes=n[1-4] RingSize=4\n"])
def test_a_cluster_without_switches_and_blocks_has_no_racks(text):
    """The flat topology prints nothing on standard output."""
    assert parse_racks(text) == {}


@pytest.mark.parametrize("nodes", ["", " Nodes=", " Nodes=(null)"])
def test_a_switch_without_nodes_is_no_rack(nodes):
    """Slurm lists switches whose nodes have left the cluster."""
    assert parse_racks(f"SwitchName=s1 Level=0 LinkSpeed=1{nodes}\n") == {}


def test_a_node_below_two_leaf_switches_belongs_to_the_first():
    """Slurm allows such a topology, as for a dragonfly network."""
    assert parse_racks("SwitchName=s1 Level=0 Nodes=n1\nSwitchName=s2 Level=0 Nodes=n[1-2]\n") == {
        "n1": "s1",
        "n2": "s2",
    }


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("SwitchName=s1 LinkSpeed=1 Nodes=n1", "switch 's1': Level"),
        ("SwitchName=s1 Level=-1 Nodes=n1", "switch 's1': Level"),
        ("SwitchName=s1 Level=0 Nodes=n[1", "switch 's1': Nodes"),
        ("BlockName=b1 BlockIndex=0 Nodes=n[1-9999999]", "block 'b1': Nodes"),
    ],
)
def test_an_unreadable_unit_is_named(line, named):
    """The error names the switch or block, and the field."""
    with pytest.raises(MalformedOutputError, match=named):
        parse_racks(line)


@given(st.text(), st.text())
def test_hostile_text_gives_racks_or_a_named_error(name, nodes):
    """No other exception is raised, and no rack's or node's name is empty."""
    for line in (f"SwitchName={name} Level=0 Nodes={nodes}", f"BlockName={name} Nodes={nodes}", name):
        try:
            racks = parse_racks(line)
        except MalformedOutputError:
            continue
        assert all(racks)
