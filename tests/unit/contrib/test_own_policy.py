"""The tutorial docs/researcher/OWN-POLICY.md, run as the page says, on a made trace of the public one's form."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "researcher" / "OWN-POLICY.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "contrib" / "examples" / "own_policy"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Runs a block of the page in a directory that has the example, and returns its output."""
    base = tmp_path_factory.mktemp("tutorial")
    traces = base / "traces"
    traces.mkdir()
    rows = [f"{n},{n * 300},{200 + 977 * n % 9000},{(1, 1, 64, 8, 1, 32)[n % 6]}" for n in range(36)]
    (traces / "cluster01.csv").write_text("job_id,submission_time,duration,num_gpu\n" + "\n".join(rows) + "\n")
    shutil.copytree(EXAMPLE, base / EXAMPLE.relative_to(ROOT))  # pip leaves files among the sources
    installed = base / "installed"
    environment = {
        **os.environ,
        "COLUMNS": "200",
        "TRACES": str(traces),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{installed}:{ROOT}",
        "PIP_TARGET": str(installed),  # the page's pip installs beside the tests' environment
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }

    def run(language, text):
        argv = [sys.executable, "-c", text] if language == "python" else ["bash", "-euc", text]
        done = subprocess.run(argv, cwd=base, env=environment, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.timeout(900)
def test_the_page_runs_as_it_says(study):
    """Each block but the demo's runs in order; small jobs wait less than under FIFO; the entry point is found."""
    *blocks, demo = BLOCKS
    assert demo == ("sh", "metasched demo --policy waited_per_gpu\n")
    copied, simulated, installed = (study(*block) for block in blocks)
    assert copied == ""
    waits = {row[1]: float(row[3]) for line in simulated.splitlines()[1:] if (row := line.split())}
    assert waits.keys() == {"fifo", "las", "waited_per_gpu"}
    assert waits["waited_per_gpu"] < waits["fifo"]
    assert re.search(r"^\W*waited_per_gpu\W", installed, flags=re.MULTILINE), installed


def test_the_policy_has_as_many_lines_as_the_page_says():
    """The page promises forty lines."""
    assert "a policy of 40 lines" in " ".join(PAGE.split())
    assert len((EXAMPLE / "waited_per_gpu.py").read_text().splitlines()) <= 40
