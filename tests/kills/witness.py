"""An independent witness of one job's directory: who claimed, who wrote what when, and what was whole at that time.

It shares no code with the shim: it knows the files by what docs/user/SHIM.md and docs/developer/PROTOCOL.md say of
them.
"""

import ctypes
import json
import os
import re
import select
import struct
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import NamedTuple

IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x80, 0x100, 0x200
EVENT = struct.Struct("iIII")
NAME = re.compile(r"incarnation-([0-9]+)-step-([0-9]+)(?:-([0-9]+))?\.(json|pt)(\.partial)?")


class Whole(NamedTuple):
    """A checkpoint that is what its manifest says; ordered as a trainer must order them."""

    generation: int
    step: int
    number: int
    path: Path


def whole_checkpoints(directory, below=sys.maxsize):
    """The whole checkpoints of generations below a number, newest first."""
    found = []
    for manifest in directory.glob("*.json"):
        match = NAME.fullmatch(manifest.name)
        if not match or int(match[1]) >= below:
            continue
        try:
            content = json.loads(manifest.read_bytes())
            data = manifest.with_suffix(".pt").read_bytes()
        except (OSError, ValueError):
            continue
        rest = {key: value for key, value in content.items() if key != "own_crc32"}
        if content.get("own_crc32") != zlib.crc32(json.dumps(rest, sort_keys=True).encode()):
            continue
        if (len(data), zlib.crc32(data), int(match[2])) == (
            content["bytes"],
            content["crc32"],
            content["progress"]["step"],
        ):
            found.append(Whole(int(match[1]), int(match[2]), int(match[3] or 1), manifest))
    return sorted(found, reverse=True)


class Witness:
    """Watches a job's directory from before its first trainer on. A context manager.

    `reports` has a directory of reports for each uid under which the job has run, and for no other job; without it, the
    files `started-GENERATION` of the script tell where each one resumed.
    """

    def __init__(self, directory, reports):
        self.directory = directory
        self.reports = reports
        self.checkpoints = directory / "checkpoints"
        claims = self.checkpoints / "incarnations"
        claims.mkdir(parents=True)
        self.violations = []
        self.claims = {}  # generation: the newest whole checkpoint when it was claimed, or None
        self.written = 0
        self._partial = set()
        self._changed = threading.Condition()
        libc = ctypes.CDLL(None, use_errno=True)
        self._watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._places = {}
        for place, mask in ((claims, IN_CREATE), (self.checkpoints, IN_CREATE | IN_MOVED_TO | IN_DELETE)):
            number = libc.inotify_add_watch(self._watch, os.fsencode(place), mask)
            assert number > 0, os.strerror(ctypes.get_errno())
            self._places[number] = place
        self._closing, self._close = os.pipe()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def newest(self):
        """The generation that was claimed last."""
        return max(self.claims, default=0)

    def wait(self, condition, seconds, what):
        """Wait until a condition on this witness holds; it is looked at after every event."""
        end = time.monotonic() + seconds
        with self._changed:
            while not condition():
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"waited {seconds} s for {what}")
                self._changed.wait(min(left, 0.05))

    def writing(self, generation):
        """Whether a file of that generation is being written."""
        return generation in self._partial

    def trained(self, generation):
        """What a generation has trained: {step: (epoch, samples)}, of all its ranks."""
        steps = {}
        for path in self.directory.glob(f"trained-{generation}-*.jsonl"):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    part = json.loads(line)
                    samples = steps.setdefault(part["step"], (part["epoch"], []))[1]
                    samples += part["samples"]
        return steps

    def last_step(self, generation):
        """The last step that any of its ranks has begun."""
        return max(self.trained(generation), default=0)

    def starts(self):
        """{generation: the step that its report, or else its script, says it resumed from}."""
        if self.reports is None:
            files = {number: self.directory / f"started-{number}" for number in self.claims}
            return {number: int(path.read_text()) for number, path in files.items() if path.exists()}
        found = {}
        for path in self.reports.glob("*/incarnation-*.jsonl"):
            lines = path.read_text().splitlines()
            start = json.loads(lines[0]) if lines else {}
            if start.get("kind") == "start":
                found[start["incarnation"]] = start["step"]
        return found

    def judge(self, finished):
        """Everything that is wrong with what was seen; a `finished` job must have trained every sample once."""
        wrong = list(self.violations)
        starts = self.starts()
        for generation, begin in starts.items():
            newest = self.claims[generation]
            if begin != (newest.step if newest else 0):
                wrong.append(f"generation {generation} resumed from step {begin} instead of from {newest}")
        if finished:
            wrong += self._judge_history()
        return wrong

    def history(self):
        """{epoch: samples} of the steps that count: those that no later generation has trained again."""
        starts, seen = self.starts(), {}
        ends = sys.maxsize
        for generation in sorted(starts, reverse=True):
            for step, (epoch, samples) in self.trained(generation).items():
                if step <= ends:
                    seen.setdefault(epoch, []).extend(samples)
            ends = min(ends, starts[generation])
        return seen

    def _judge_history(self):
        seen = self.history()
        usual = sorted(seen.get(0, []))
        wrong = [f"epoch {epoch} has {len(s)} samples" for epoch, s in seen.items() if sorted(s) != usual]
        if usual != list(range(len(usual))) or sorted(seen) != list(range(len(seen))):
            wrong.append(f"epochs {sorted(seen)}, of samples {usual}")
        return wrong

    def _run(self):
        while self._closing not in select.select([self._watch, self._closing], [], [])[0]:
            content = os.read(self._watch, 1 << 16)
            with self._changed:
                while content:
                    number, mask, _, length = EVENT.unpack_from(content)
                    name = content[EVENT.size : EVENT.size + length].rstrip(b"\0").decode()
                    content = content[EVENT.size + length :]
                    self._note(self._places[number], mask, name)
                self._changed.notify_all()

    def _note(self, place, mask, name):
        if place != self.checkpoints:
            if name.isdigit():  # not what will be linked to one
                self.claims[int(name)] = next(iter(whole_checkpoints(self.checkpoints, int(name))), None)
            return
        match = NAME.fullmatch(name)
        if not match:
            return
        generation = int(match[1])
        if match[5]:
            (self._partial.add if mask & IN_CREATE else self._partial.discard)(generation)
        elif mask & IN_MOVED_TO:
            self._partial.discard(generation)
            self.written += match[4] == "json"
            if generation < self.newest:
                self.violations.append(f"{name} was written after generation {self.newest} had been claimed")

    def close(self):
        """Watch no more."""
        os.close(self._close)
        self._thread.join()
        os.close(self._watch)
        os.close(self._closing)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
