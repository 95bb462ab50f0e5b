import shutil
import subprocess

import pytest

from metasched.metrics.exposition import MAX_SERIES, exposition
from metasched.metrics.sample import Histogram, Sample


def sample(**changes):
    """Return the sample of a small cluster."""
    fields = {
        "version": "0.1.0",
        "policy": "las",
        "last_poll": 1e9,
        "slurm_reachable": True,
        "poll_seconds": {"observe": 0.5, "act": 0.1},
        "decide_seconds": 0.25,
        "rounds": 7,
        "jobs": {"running": 3, "held": 2},
        "waiting": {"waits_for_gpus": 2},
        "fitting": 1,
        "gpus": {("v100", "used"): 6, ("v100", "free"): 2},
        "account_gpus": {"vision": 6},
        "account_gpu_seconds": {("vision", "v100"): 3600.5},
        "runs_ended": {"finished": 5.0},
        "actions": {("start", "ok"): 8.0},
        "overhead": {"start": 12.5},
        "waits": Histogram({60.0: 3, 300.0: 1, float("inf"): 1}, 1000.0),
        "completions": Histogram({60.0: 0}, 0.0),
        "rho_worst": {"pollux": 1.5},
        "unfair_ratio": {"pollux": 0.25},
        "free_bytes_ratio": {"state": 0.5},
    }
    return Sample(**(fields | changes))


def series(text):
    """The lines with values."""
    return [line for line in text.decode().splitlines() if line and not line.startswith("#")]


def crowd():
    """A sample with all that users and admins can make many of."""
    accounts = [f"account{i}" for i in range(100)] + ["other"]
    types = [f"type{i}" for i in range(40)]
    return sample(
        waiting={f"code{i}": i for i in range(500)},
        gpus={(kind, use): 8 for kind in types for use in ("used", "free", "closed", "leaked")},
        account_gpus=dict.fromkeys(accounts, 4),
        account_gpu_seconds={(account, kind): 1.0 for account in accounts for kind in types},
    )


@pytest.mark.parametrize(
    "line",
    [
        'metasched_jobs{state="running"} 3.0',
        'metasched_gpus{type="v100",use="free"} 2.0',
        'metasched_account_gpus{account="vision"} 6.0',
        'metasched_account_gpu_seconds_total{account="vision",type="v100"} 3600.5',
        'metasched_waiting{reason="waits_for_gpus"} 2.0',
        'metasched_runs_ended_total{cause="finished"} 5.0',
        'metasched_overhead_gpu_seconds_total{part="start"} 12.5',
        'metasched_rho_worst{definition="pollux"} 1.5',
        'metasched_unfair_ratio{definition="pollux"} 0.25',
        "metasched_decide_seconds 0.25",
        'metasched_poll_seconds{step="observe"} 0.5',
        'metasched_actions_total{kind="start",outcome="ok"} 8.0',
        "metasched_last_poll_timestamp_seconds 1e+09",
        "metasched_slurm_reachable 1.0",
        'metasched_build_info{policy="las",version="0.1.0"} 1.0',
    ],
)
def test_every_series_is_there(line):
    """The names and labels are those of the documentation."""
    assert line in series(exposition(sample())) or line.replace(
        'policy="las",version="0.1.0"', 'version="0.1.0",policy="las"'
    ) in series(exposition(sample()))


def test_buckets_are_cumulated():
    """Prometheus's buckets count all that is below their bound."""
    lines = series(exposition(sample()))
    assert 'metasched_wait_seconds_bucket{le="60"} 3.0' in lines
    assert 'metasched_wait_seconds_bucket{le="300"} 4.0' in lines
    assert 'metasched_wait_seconds_bucket{le="+Inf"} 5.0' in lines
    assert {"metasched_wait_seconds_count 5.0", "metasched_wait_seconds_sum 1000.0"} <= set(lines)


def test_what_is_not_known_is_left_out():
    """Under PrivateData no series names an account; before the first round there is no decision."""
    text = exposition(sample(account_gpus=None, account_gpu_seconds=None, decide_seconds=None, last_poll=None))
    assert b"account" not in text
    assert b"decide_seconds" not in text
    assert b"last_poll" not in text


def test_the_number_of_series_is_bounded():
    """Sums stay whole: what is left out by name is in `other`."""
    lines = series(exposition(crowd()))
    assert len(lines) <= MAX_SERIES
    seconds = sum(float(line.split()[-1]) for line in lines if line.startswith("metasched_account_gpu_seconds_total"))
    assert seconds == 101 * 40
    assert sum(float(line.split()[-1]) for line in lines if line.startswith("metasched_gpus")) == 40 * 4 * 8


def test_labels_cannot_break_the_format():
    """An account's name with quotes, newlines and 64 KB stays one line."""
    text = exposition(sample(account_gpus={'a"\n\\' + "x" * 65536: 1}))
    (line,) = [line for line in series(text) if line.startswith("metasched_account_gpus")]
    assert len(line) < 200


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("made", [sample, crowd])
def test_promtool_accepts_the_metrics(made):
    """Prometheus's own checker finds nothing to say."""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=exposition(made()), capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
