"""The units of systemd, read by systemd itself where it is installed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[3] / "slurm_scripts"

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def analyze(*arguments):
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", sorted(path.name for path in UNITS.glob("*.service")))
def test_systemd_accepts_the_unit(name, tmp_path):
    """No key is unknown, no value wrong; the program is one that exists here, and manuals are left out."""
    text = re.sub(r"(?m)^(ExecStart=)\S+", r"\1/bin/true", (UNITS / name).read_text())
    (tmp_path / name).write_text(re.sub(r"(?m)^Documentation=.*\n", "", text))
    done = analyze("verify", "--recursive-errors=no", str(tmp_path / name))
    assert [line for line in done.stderr.splitlines() if name in line] == []
    assert done.returncode == 0


def test_the_page_may_do_little():
    """Systemd rates the exposure of the page's unit at 1.5 or less, of 10."""
    unit = str(UNITS / "metasched-web.service")
    assert analyze("security", "--offline=true", "--threshold=15", unit).returncode == 0
