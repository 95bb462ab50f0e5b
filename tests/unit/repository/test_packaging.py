import importlib
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import metasched

ROOT = Path(__file__).parents[3]
TOPS = ("metasched", "policies", "trainer_shim")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of the tree: building leaves files among the sources."""
    work = tmp_path_factory.mktemp("build")
    tree = work / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist"))
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, work], cwd=tree, check=True, timeout=120, stdout=subprocess.DEVNULL)
    (built,) = work.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        yield archive


@pytest.fixture
def metadata(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(wheel.read(name))


def test_the_wheel_holds_the_packages_and_no_others(wheel):
    """Every source file of the three packages is installed, and nothing of tests/ or contrib/ is."""
    python = {name for name in wheel.namelist() if name.endswith(".py")}
    assert python == {str(path.relative_to(ROOT)) for top in TOPS for path in (ROOT / top).rglob("*.py")}
    assert not {"tests", "contrib"} & {part for name in wheel.namelist() for part in name.split("/")}
    assert all(f"{top}/py.typed" in wheel.namelist() for top in TOPS)


def test_the_wheel_holds_what_an_admin_installs(wheel):
    """The wrapper becomes a command, whose first line pip changes; share/ has all of slurm_scripts/ unchanged."""
    data = {name.split(".data/", 1)[1]: name for name in wheel.namelist() if ".data/" in name}
    scripts = {f"data/share/metasched/slurm_scripts/{p.name}": p for p in (ROOT / "slurm_scripts").glob("[!_.]*")}
    assert data.keys() == {"scripts/metasched-run", *scripts}
    for name, path in scripts.items():
        assert wheel.read(data[name]) == path.read_bytes()
        assert wheel.getinfo(data[name]).external_attr >> 16 & 0o111 == path.stat().st_mode & 0o111


def test_the_commands_refuse_an_older_python(monkeypatch):
    """Pip installs the distribution for an older Python, because the shim works with it."""
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    with pytest.raises(ImportError, match=r"python3\.11 -m venv"):
        importlib.reload(metasched)


def test_the_base_install_asks_for_torch_alone(metadata):
    """Without extras the distribution needs nothing but torch, on Python 3.9 and later."""
    base = [need for need in metadata.get_all("Requires-Dist") if "extra ==" not in need]
    assert [need.split(">")[0] for need in base] == ["torch"]
    assert metadata["Requires-Python"] == ">=3.9"


def test_the_extras_are_there(metadata):
    """The daemon, its optional Slurm client and the tests are extras; the daemon's ask for Python 3.11."""
    extras = {"daemon", "docs", "examples", "integrations", "pandas", "pyslurm", "simulator", "test", "web"}
    assert set(metadata.get_all("Provides-Extra")) == extras
    daemon = [need for need in metadata.get_all("Requires-Dist") if 'extra == "daemon"' in need]
    assert daemon
    assert all('python_version >= "3.11"' in need for need in daemon)
