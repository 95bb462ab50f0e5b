"""The simplest tracker, for tests: a file with a JSON line for each point, and for each end of a run."""

import json

from trainer_shim.trackers import tracker as trackers


class Lines:
    """A run of the tracker."""

    handle = None

    def __init__(self, run_id, path):
        self.run_id, self.file = run_id, path.open("a", buffering=1)

    def log(self, values, step):
        self.file.write(json.dumps({"run": self.run_id, "step": step, **values}) + "\n")

    def close(self, outcome):
        self.file.write(json.dumps({"run": self.run_id, "outcome": outcome}) + "\n")


def open_run(run_id, options):
    """The entry point of a tracker's module."""
    return Lines(run_id, **options)


def install():
    """Let trainings choose the tracker `lines`."""
    trackers.LIBRARIES["lines"] = __name__
