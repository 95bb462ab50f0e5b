"""The scripts of the cluster in containers, without an engine and without a network."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.programs import write_program

SCRIPTS = Path(__file__).parents[3] / "contrib" / "docker"
ENGINE = "/run/metasched-dockerd"
"""Where the script keeps the pid of the engine that it started; `down` ends that engine, which may be a real one."""

DOCKER = """#!/bin/sh
[ -n "$INSTALLED" ] || exit 1
case "$*" in
    wait*) echo "$INSTALLED" ;;
    images*) echo image ;;
    *"ps -aq install") echo container ;;
    *sinfo*) echo idle ;;
esac
"""


@pytest.fixture
def cluster(tmp_path):
    """Run the script in a checkout where `docker` answers as if metasched's installation had ended with that status."""
    write_program(tmp_path / "bin" / "docker", DOCKER)
    for nothing in ("bin/sleep", ".venv/bin/python"):
        write_program(tmp_path / nothing, "#!/bin/sh\n")
    script = tmp_path / "contrib" / "docker" / "cluster"
    script.parent.mkdir(parents=True)
    text = (SCRIPTS / "cluster").read_text()
    assert ENGINE in text
    script.write_text(text.replace(ENGINE, str(tmp_path / "dockerd")))
    script.chmod(0o755)

    def run(verb, installed):
        environ = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "WHEELS": str(tmp_path / "wheels")}
        return subprocess.run(
            [str(script), verb],
            env=environ | {"INSTALLED": installed},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("verb", "installed", "status", "words"),
    [
        ("up", "0", 0, "is up after"),
        ("up", "1", 1, "metasched could not be installed"),
        ("down", "0", 0, ""),
        ("down", "", 69, "no Docker engine can be had here: none answers"),
    ],
)
def test_the_cluster_script_reports_its_outcome(cluster, verb, installed, status, words):
    """After a failed installation there is no cluster; without a container engine there is nothing to remove."""
    ended = cluster(verb, installed)
    assert ended.returncode == status, ended.stderr
    assert words in ended.stderr


@pytest.fixture
def wheels(monkeypatch):
    """The script that fetches wheels, with a pip that has metasched 2 and scipy 2."""
    spec = importlib.util.spec_from_file_location("docker_wheels", SCRIPTS / "wheels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(command, **_):
        if "wheel" in command:
            path = Path(command[command.index("--wheel-dir") + 1], "metasched-2.whl")
            path.parent.mkdir(exist_ok=True)
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("metasched-2.dist-info/METADATA", 'Requires-Dist: scipy; extra == "daemon"\n')
        elif "download" in command:
            assert "scipy" in command
            assert Path(command[command.index("--find-links") + 1], "scipy-1.whl").exists()
            Path(command[command.index("--dest") + 1], "scipy-2.whl").touch()
        return subprocess.CompletedProcess(command, 0, stdout=b"")

    monkeypatch.setattr(module.subprocess, "run", run)
    return module


def test_new_wheels_replace_old_ones(wheels, tmp_path, monkeypatch):
    """The directory has one version of each package; its other wheels may be used again."""
    directory = tmp_path / "wheels"
    directory.mkdir()
    for name in ("metasched-1.whl", "scipy-1.whl"):
        (directory / name).touch()
    monkeypatch.setattr(sys, "argv", ["wheels.py", str(directory), "3.11"])
    assert wheels.main() == 0
    assert sorted(path.name for path in directory.iterdir()) == ["metasched-2.whl", "scipy-2.whl"]
    assert list(tmp_path.iterdir()) == [directory]


def test_a_directory_with_other_files_is_not_replaced(wheels, tmp_path, monkeypatch):
    """Only a directory of wheels alone is replaced."""
    (tmp_path / "thesis.tex").touch()
    monkeypatch.setattr(sys, "argv", ["wheels.py", str(tmp_path), "3.11"])
    with pytest.raises(SystemExit, match=r"thesis\.tex"):
        wheels.main()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
