"""The import of GPU use asks a real Prometheus; run by name, since it takes some seconds."""

import shutil
import subprocess
import time

import pytest

from metasched.history_import.prometheus_import import EXPORTERS, Prometheus, import_gpu_use
from metasched.store import JobRecord, Store
from tests.prometheus.test_prometheus import ask, prometheus

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="prometheus is not installed")
HOUR = 3600


def series(name, labels, values):
    """Lines of OpenMetrics: a value each 30 s."""
    return [f"{name}{{{labels}}} {value} {at}" for at, value in values]


@pytest.mark.parametrize("exporter", ["dcgm", "jobstats"])
def test_a_real_prometheus_tells_how_jobs_used_their_gpus(tmp_path, exporter):
    """Job 11 has two GPUs for two hours, one of them idle; job 12 has one of them for the third hour."""
    begin = int(time.time() // HOUR) * HOUR - 6 * HOUR
    first = range(begin + 30, begin + 2 * HOUR + 1, 30)
    second = range(begin + 2 * HOUR + 300, begin + 3 * HOUR + 1, 30)
    if exporter == "dcgm":
        name = "DCGM_FI_DEV_GPU_UTIL"
        lines = [
            f"# TYPE {name} gauge",
            *series(name, 'gpu="0",hpc_job="11",Hostname="n1"', [(at, 80) for at in first]),
            *series(name, 'gpu="1",hpc_job="11",Hostname="n1"', [(at, 0) for at in first]),
            *series(name, 'gpu="0",hpc_job="12",Hostname="n1"', [(at, 50) for at in second]),
            *series(name, 'gpu="2",hpc_job="",Hostname="n1"', [(at, 0) for at in first]),
        ]
    else:
        gpu = 'instance="n1:9445",minor_number="{}"'
        lines = [
            "# TYPE nvidia_gpu_duty_cycle gauge",
            *series(
                "nvidia_gpu_duty_cycle", gpu.format(0), [*((at, 80) for at in first), *((at, 50) for at in second)]
            ),
            *series("nvidia_gpu_duty_cycle", gpu.format(1), [(at, 0) for at in (*first, *second)]),
            "# TYPE nvidia_gpu_jobId gauge",
            *series("nvidia_gpu_jobId", gpu.format(0), [*((at, 11) for at in first), *((at, 12) for at in second)]),
            *series("nvidia_gpu_jobId", gpu.format(1), [*((at, 11) for at in first), *((at, 0) for at in second)]),
        ]
    (tmp_path / "history").write_text("\n".join([*lines, "# EOF", ""]))
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", tmp_path / "history", tmp_path / "data"]
    subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL)
    with Store.open(tmp_path / "s.db") as store:
        for number in (1, 2):
            store.add_job(JobRecord(f"{number:016x}", str(10 + number), "train", "ada", begin - 10.0))
        with prometheus(tmp_path, 9) as port:
            deadline = time.monotonic() + 60
            while ask(port, "vector(1)") is None:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            server = Prometheus(f"http://127.0.0.1:{port}")
            import_gpu_use(store, server, EXPORTERS[exporter], begin, begin + 3 * HOUR)
        one, two = store.gpu_use(f"{1:016x}"), store.gpu_use(f"{2:016x}")
    # A series counts for five minutes after its last value, and each window has both its ends.
    assert one.gpu_seconds == pytest.approx(4 * HOUR, abs=900)
    assert (one.busy, one.idle) == (pytest.approx(0.4, abs=0.01), pytest.approx(0.5, abs=0.01))
    assert two.gpu_seconds == pytest.approx(HOUR - 300, abs=450)
    assert (two.busy, two.idle) == (pytest.approx(0.5, abs=0.01), 0.0)
