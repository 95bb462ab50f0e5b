"""The notebooks of contrib/notebooks, run cell by cell."""

import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from metasched.configuration.file_names import DATABASE
from metasched.core.model import Placement
from metasched.shared_dir.published_status import publish
from metasched.store import EndCause, JobRecord, Store
from tests.unit.statuses import published

ROOT = Path(__file__).parents[3]
NOTEBOOKS = sorted((ROOT / "contrib" / "notebooks").glob("*.ipynb"))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A configuration with a published status, and a database with one ended job of two runs."""
    shared, state = tmp_path / "shared", tmp_path / "state"
    shared.mkdir()
    state.mkdir()
    config = tmp_path / "metasched.toml"
    config.write_text(f'[paths]\nshared = "{shared}"\nstate = "{state}"\n')
    publish(shared, published())
    now, place = time.time(), Placement(("n1",), 2, "v100")
    with Store.open(state / DATABASE) as store:
        store.add_job(JobRecord(uid="a", slurm_job_id="1", name="x", user="<b>ada</b>", submitted=now - 600))
        for run, (begin, cause) in enumerate([(now - 500, EndCause.PREEMPTED), (now - 300, EndCause.FINISHED)], 1):
            store.release("a", run, place, begin)
            store.run_started("a", run, begin, place)
            store.run_ended("a", run, begin + 100, cause)
        store.finish_job("a", now - 200, "COMPLETED", 0)
        store.event("preempted", "for others", "a", at=now - 400)
    monkeypatch.setenv("METASCHED_CONFIG", str(config))
    monkeypatch.delenv("METASCHED_SHARED", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return tmp_path


@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(site, path):
    """Every cell runs, the tables are shown as HTML, and no user's name is HTML."""
    found = nbformat.read(path, as_version=4)
    NotebookClient(found, timeout=800, kernel_name="python3", resources={"metadata": {"path": str(site)}}).execute()
    outputs = [one for cell in found.cells for one in cell.get("outputs", ())]
    shown = [one["data"]["text/html"] for one in outputs if "text/html" in one.get("data", {})]
    assert len(shown) >= 2
    assert "<b>ada" not in "".join(shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path):
    """Outputs are made by those who run it; the repository has the cells alone."""
    cells = nbformat.read(path, as_version=4).cells
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
