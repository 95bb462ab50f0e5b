"""When a controller can be killed without it forgetting what it knows."""

import time


def until_saved(poke, written, seconds=60):
    """Wait until slurmctld has written to disk what it knows of its jobs now; it does so some seconds after a change.

    `poke` changes something of a job. `written` tells one version of slurmctld's file of jobs from another, and returns
    nothing while there is no file: slurmctld removes the old version before it names the new one. The first new version
    may have been begun before the change, the second one was not.
    """
    deadline = time.monotonic() + seconds
    before = written()
    for _ in range(2):
        poke()
        while not (now := written()) or now == before:
            assert time.monotonic() < deadline, f"slurmctld has not written its state within {seconds} s"
            time.sleep(0.1)
        before = now


def until_cluster_saved(cluster, job):
    """``until_saved`` for a private cluster, by changes of one of its jobs."""
    file = cluster.base / "state" / "job_state"
    update = ("scontrol", "update", f"JobId={job}", "Nice=0")

    def written():
        try:
            return file.stat().st_mtime_ns
        except FileNotFoundError:
            return None

    until_saved(lambda: cluster.run(*update), written)
