"""A real Prometheus scrapes the endpoint, and answers the board's queries; run by name, since it takes some seconds."""

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from metasched.metrics.endpoint import endpoint
from metasched.metrics.exposition import exposition
from tests.unit.metrics.test_exposition import sample

GRAFANA = Path(__file__).parents[2] / "contrib" / "grafana"
pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")


def free_port():
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def prometheus(base, target):
    """A Prometheus that scrapes one target every second; yields its port."""
    port = free_port()
    (base / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(GRAFANA / "alerts.yml")],
                "scrape_configs": [{"job_name": "metasched", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}],
            }
        )
    )
    argv = ["prometheus", f"--config.file={base}/prometheus.yml", f"--storage.tsdb.path={base}/data"]
    with (base / "log").open("wb") as log:
        process = subprocess.Popen([*argv, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(30)


def ask(port, query):
    """The result of an instant query; None while Prometheus starts."""
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]["result"]
    except OSError:
        return None


def test_a_real_prometheus_scrapes_and_each_panel_has_data(tmp_path):
    """Every query of the board returns data after some scrapes of a file that changes meanwhile."""
    target, file = free_port(), tmp_path / "metrics.prom"
    board = json.loads((GRAFANA / "metasched.json").read_text())
    queries = {found["expr"] for panel in board["panels"] for found in panel["targets"]}
    with endpoint(f"127.0.0.1:{target}", file), prometheus(tmp_path, target) as port:
        deadline, number = time.monotonic() + 60, 0
        while queries:
            assert time.monotonic() < deadline, queries
            number += 1
            file.write_bytes(exposition(sample(last_poll=time.time(), runs_ended={"finished": 5.0 + number})))
            queries -= {query for query in queries if ask(port, query)}
            time.sleep(0.5)
        assert ask(port, 'metasched_jobs{state="running"}')[0]["value"][1] == "3"
        assert ask(port, "up")[0]["value"][1] == "1"
