"""The steps that a tracker has points of already, kept in the checkpoint directory over all runs of a job.

A training that is killed resumes from an older checkpoint, and trains some steps again, which its tracker has already.
Trackers cannot be asked for that alike: an offline one knows nothing of its earlier files.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path


class LoggedSteps:
    """The last step of each value, as earlier runs of the job have logged them, in a file to which this run adds.

    The first line of the file has the id of the tracker's run; each further line has a step and the names of its
    values. A line is appended before the tracker gets its point: a point may be lost with its process, and none is
    logged twice.

    Args:
        path: the file.
        uid: the job's identity, None outside metasched.

    Attributes:
        run_id: the id of the tracker's run: that of the job which began the training in this directory.
        continues: whether an earlier run of the job has opened the tracker.

    Raises:
        OSError: the file cannot be read or written.
    """

    def __init__(self, path: Path, uid: str | None) -> None:
        self._last: dict[str, int] = {}
        run_id: str | None = None
        for line in _lines(path):
            if "run" in line:
                run_id = run_id or str(line["run"])
            else:
                for name in line["names"]:
                    self._last[name] = max(line["step"], self._last.get(name, line["step"]))
        self.continues = run_id is not None
        self.run_id = run_id or f"metasched-{uid or secrets.token_hex(8)}"
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._file.write("\n")  # ends the line of a process that died in the middle of it
        if not self.continues:
            self._add({"run": self.run_id})

    def new(self, values: Mapping[str, float], step: int) -> dict[str, float]:
        """Return the values that earlier runs have not logged at this step or a later one."""
        return {name: value for name, value in values.items() if step > self._last.get(name, -1)}

    def add(self, names: Collection[str], step: int) -> None:
        """Note that values of these names are logged at this step.

        Raises:
            OSError: the file cannot be written.
        """
        self._add({"step": step, "names": list(names)})

    def _add(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of the file, none where there is no file."""
    with contextlib.suppress(FileNotFoundError), path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            with contextlib.suppress(ValueError):  # of a line that its process has not finished
                yield json.loads(text)
