"""`metasched init` and `metasched check` beside a real Slurm."""

import json
import os
import subprocess
import sys

from tests.slurm.site import ROOT


def metasched(cluster, *words):
    env = {**cluster.env, "PATH": f"{ROOT / 'slurm_scripts'}{os.pathsep}{cluster.env['PATH']}"}
    return subprocess.run(
        [sys.executable, "-m", "metasched", *map(str, words)],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_what_init_writes_passes_the_check(clean_cluster, tmp_path):
    """On the cluster that it was written for, nodes included; the daemon takes it."""
    config = tmp_path / "metasched.toml"
    (tmp_path / "shared").mkdir()
    written = metasched(
        clean_cluster, "--config", config, "init", "--shared", tmp_path / "shared", "--state", tmp_path / "state"
    )
    assert written.returncode == 0, written.stderr
    assert (
        f"Partitions with nodes here: {clean_cluster.run('sinfo', '-h', '-o', '%R').split()[0]}" in config.read_text()
    )
    checked = metasched(clean_cluster, "--config", config, "check", "--nodes", "--json")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    found = {finding["subject"]: finding for finding in json.loads(checked.stdout)}
    assert set(clean_cluster.nodes) <= set(found)
    assert all(found[name]["level"] == "ok" for name in (*clean_cluster.nodes, "Slurm", "role", "[paths] state"))
    assert metasched(clean_cluster, "--config", config, "daemon", "--dry-run").returncode == 0


def test_init_leaves_a_configuration_alone(clean_cluster, tmp_path):
    """What an admin has written is never overwritten."""
    config = tmp_path / "metasched.toml"
    config.write_text("mine")
    refused = metasched(clean_cluster, "--config", config, "init", "--shared", tmp_path)
    assert refused.returncode == 1
    assert "File exists" in refused.stderr
    assert config.read_text() == "mine"


def test_a_shared_directory_that_is_still_to_be_made_is_told_once(clean_cluster, tmp_path):
    """And not by every node, each of which would be a fault to look for."""
    config = tmp_path / "metasched.toml"
    config.write_text(f'[paths]\nstate = "{tmp_path}/state"\nshared = "{tmp_path}/missing"\n')
    checked = metasched(clean_cluster, "--config", config, "check", "--nodes")
    assert checked.returncode == 0
    assert checked.stdout.count("does not exist yet") == 1
    for node in clean_cluster.nodes:
        assert f"{node}: has what jobs need" in checked.stdout
