"""contrib/bootstrap, with a fake Python that logs its arguments."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.programs import write_program

SCRIPT = Path(__file__).parents[3] / "contrib" / "bootstrap"
# `-m venv` makes .venv of a copy of this, and a pip that says where it is.
PYTHON = """#!/bin/sh
echo "$*" >> "$LOG"
[ "$*" = "-m venv --clear .venv" ] || exit 0
rm -rf .venv
mkdir -p .venv/bin
cp "$0" .venv/bin/python
printf '#!/bin/sh\\necho "pip 23.2 from %s/.venv/lib/pip (python 3.11)"\\n' "$PWD" > .venv/bin/pip
chmod +x .venv/bin/pip
"""


@pytest.fixture
def bootstrap(tmp_path):
    """Return a function that runs the script in a checkout, and returns the logged arguments of Python."""
    checkout = tmp_path / "checkout"
    for name in ("setup.py", "pyproject.toml", "contrib/constraints.txt"):
        write_program(checkout / name, "")
    shutil.copy(SCRIPT, checkout / "contrib")
    write_program(tmp_path / "bin" / "python3", PYTHON)
    write_program(tmp_path / "bin" / "make", "")

    def run(checkout=checkout, refusal=None):
        log = tmp_path / "log"
        log.write_text("")
        env = os.environ | {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "LOG": str(log)}
        argv = [checkout / "contrib" / "bootstrap"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode == 0) is (refusal is None), done.stderr
        assert refusal is None or refusal in done.stderr
        return log.read_text()

    run.checkout = checkout
    return run


MADE = "-m venv --clear .venv"


def test_venv_is_made_once(bootstrap):
    """A second run neither makes nor installs anything."""
    assert MADE in bootstrap()
    again = bootstrap()
    assert MADE not in again
    assert "pip install" not in again


def test_venv_that_was_interrupted_is_made_again(bootstrap):
    """A .venv without pip is what an interrupted `python -m venv` leaves."""
    bootstrap()
    (bootstrap.checkout / ".venv/bin/pip").unlink()
    again = bootstrap()
    assert MADE in again
    assert "pip install" in again


def test_venv_of_another_checkout_is_not_emptied_through_a_link(bootstrap, tmp_path):
    """The error names the link's target; a link to an empty directory, on another disk, is used."""
    other = tmp_path / "other" / "bin"
    write_program(other / "pip", "#!/bin/sh\necho 'pip 23.2 from /elsewhere/.venv/lib/pip (python 3.11)'\n")
    (bootstrap.checkout / ".venv").symlink_to(other.parent)
    assert MADE not in bootstrap(refusal=f".venv is a link to {other.parent}")
    assert (other / "pip").exists()
    (other / "pip").unlink()
    other.rmdir()
    assert MADE in bootstrap()


def test_venv_of_a_checkout_that_was_moved_is_made_again(bootstrap, tmp_path):
    """The programs in a virtual environment name the directory in which it was made."""
    bootstrap()
    moved = bootstrap.checkout.rename(tmp_path / "moved")
    assert MADE in bootstrap(moved)
