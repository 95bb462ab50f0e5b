import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from metasched.metrics.exposition import exposition
from tests.unit.metrics.test_exposition import sample

GRAFANA = Path(__file__).parents[3] / "contrib" / "grafana"
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def names(text):
    """The names of metasched's series in a query or an exposition."""
    return set(re.findall(r"\bmetasched_[a-z_]+\b", text))


def test_board_and_rules_ask_for_series_that_exist():
    """A renamed series would leave a panel empty and an alert silent."""
    there = names(exposition(sample()).decode())
    panels = json.loads((GRAFANA / "metasched.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) >= 15
    assert [query for query in queries if not names(query) or not names(query) <= there] == []
    assert names((GRAFANA / "alerts.yml").read_text()) <= there


@needs_promtool
def test_promtool_accepts_the_rules():
    """Each alert fires on its cause, and is quiet on a cluster in order."""
    for verb, file in (("check", "alerts.yml"), ("test", "alerts-test.yml")):
        done = subprocess.run(
            ["promtool", verb, "rules", GRAFANA / file], capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
