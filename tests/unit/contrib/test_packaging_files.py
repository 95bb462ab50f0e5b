"""The packages' list of files and scripts, without building one: contrib/packaging/test does that."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from metasched.configuration.config import load
from metasched.core.policy import installed_policies
from metasched.installation.template import packaged_template

ROOT = Path(__file__).parents[3]
PACKAGING = ROOT / "contrib" / "packaging"


def test_every_listed_source_exists():
    """nfpm.yaml names files of the repository, and paths that the build makes."""
    listed = re.findall(r"^  - src: (\S+)$", (PACKAGING / "nfpm.yaml").read_text(), flags=re.MULTILINE)
    assert len(listed) > 8
    assert [path for path in listed if not path.startswith(("$", "/")) and not (ROOT / path).exists()] == []


def test_every_unit_is_packaged():
    """A new unit of slurm_scripts/ is a line of nfpm.yaml, and is restarted and stopped by the scripts."""
    text = (PACKAGING / "nfpm.yaml").read_text()
    scripts = [(PACKAGING / "scripts" / name).read_text() for name in ("postinstall", "preremove")]
    for unit in (ROOT / "slurm_scripts").glob("*.service"):
        assert f"/usr/lib/systemd/system/{unit.name}" in text
        assert all(re.search(rf"\b{unit.stem}\b", script) for script in scripts)


def test_the_configuration_is_kept_by_upgrades():
    text = (PACKAGING / "nfpm.yaml").read_text()
    assert len(re.findall(r"dst: /etc/metasched/\S+\n    type: config\|noreplace", text)) == 2


def test_the_packaged_configuration_is_valid(tmp_path):
    path = tmp_path / "metasched.toml"
    path.write_text(packaged_template())
    assert str(load(path, installed_policies()).paths.shared) == "/shared/metasched"
    assert tomllib.loads(path.read_text())["paths"]["state"] == "/var/lib/metasched"


@pytest.mark.parametrize("script", ["scripts/postinstall", "scripts/preremove", "test", "in_container", "disk-use"])
def test_scripts_are_valid_shell(script):
    shell = (PACKAGING / script).read_text().splitlines()[0].split("/")[-1].removeprefix("env ")
    done = subprocess.run([shell, "-n", PACKAGING / script], capture_output=True, timeout=30, check=False)
    assert done.stderr == b""


def test_all_packages_name_the_address_of_setup_py():
    """A real address replaces the placeholder everywhere at once."""
    (address,) = re.findall(r'url="(.+?)"', (ROOT / "setup.py").read_text())
    for recipe in ("spack/packages/py-metasched/package.py", "easybuild/metasched-0.1.0-foss-2024a.eb", "nfpm.yaml"):
        lines = (PACKAGING / recipe).read_text().splitlines()
        (line,) = (line for line in lines if line.strip().startswith("homepage"))
        assert address in line.replace("'", " ").replace('"', " ").split(), recipe


def test_an_upgrade_by_rpm_keeps_the_compiled_modules(tmp_path):
    """The old package's preremove comes with 1 after the new one's postinstall; under dpkg it comes before."""
    compiled = tmp_path / "lib" / "__pycache__"
    script = (PACKAGING / "scripts" / "preremove").read_text().replace("/opt/metasched", str(tmp_path))
    for argument, kept in (("1", True), ("upgrade", False)):
        compiled.mkdir(parents=True, exist_ok=True)
        subprocess.run(["sh", "-c", script, "preremove", argument], check=True, timeout=30)
        assert compiled.exists() is kept
