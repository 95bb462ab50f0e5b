"""`metasched init` and `metasched check` with a real Slurm."""

import json
import os
import subprocess
import sys

from metasched.slurm.hostlist import compress
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


def test_the_configuration_of_init_passes_the_check(clean_cluster, tmp_path):
    """The check includes the nodes, and the daemon accepts the file."""
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
    found = {finding["subject"]: finding for finding in json.loads(checked.stdout)["rows"]}
    assert set(clean_cluster.nodes) <= set(found)
    assert all(found[name]["level"] == "ok" for name in (*clean_cluster.nodes, "Slurm", "role", "[paths] state"))
    assert metasched(clean_cluster, "--config", config, "daemon", "--dry-run").returncode == 0


def test_init_does_not_overwrite_a_configuration(clean_cluster, tmp_path):
    """An existing file stays as the admin wrote it."""
    config = tmp_path / "metasched.toml"
    config.write_text("mine")
    refused = metasched(clean_cluster, "--config", config, "init", "--shared", tmp_path)
    assert refused.returncode == 1
    assert "File exists" in refused.stderr
    assert config.read_text() == "mine"


def test_a_missing_shared_directory_is_one_finding(clean_cluster, tmp_path):
    """The nodes do not report it again."""
    config = tmp_path / "metasched.toml"
    config.write_text(f'[paths]\nstate = "{tmp_path}/state"\nshared = "{tmp_path}/missing"\n')
    checked = metasched(clean_cluster, "--config", config, "check", "--nodes")
    assert checked.returncode == 0
    assert checked.stdout.count("does not exist yet") == 1
    assert f"{compress(clean_cluster.nodes)}: has what jobs need" in checked.stdout
