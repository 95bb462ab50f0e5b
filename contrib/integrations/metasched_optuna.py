"""Optuna under metasched: a study's trials are jobs of one app, which Optuna's pruner ends early.

    study = optuna.create_study(storage=..., study_name=..., load_if_exists=True, pruner=optuna.pruners.MedianPruner())
    search = TrialJobs(study, "study-directory", sbatch=["--gres=gpu:1"])
    while search.follow() or len(study.trials) < 100:
        if len(search.live) < 4 and len(study.trials) < 100:
            search.submit(study.ask(space), "exec metasched-run python train.py")
        time.sleep(2)

The trial's script reads `parameters.json` in its working directory, and tells its value by `ctx.metric(value)` of the
trainer shim, at the end and as often before as the pruner is to see it; less is better, so a study minimizes. The
driver runs where sbatch works and METASCHED_SHARED is set. Interrupted, it goes on with the same study: it knows the
trials' jobs by their names. Copy this file next to your script, or put its directory on PYTHONPATH.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.trial import Trial, TrialState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optuna.study import Study
    from optuna.trial import FrozenTrial

SBATCH_SECONDS = 60.0
LOST_SECONDS = 60.0
"""Time without a job, while the daemon lives, after which a trial has failed."""
STALE_SECONDS = 30.0


class TrialJobs:
    """The jobs of a study's trials.

    Args:
        study: minimizes one value; in a storage that outlives this process, if the search is to.
        directory: on a file system that all nodes see; trial 7 works in `trial-7` there.
        sbatch: sbatch's options for each trial.
        tag: further keys of each trial's tag, such as `max_gpus=4`.
        shared: metasched's shared directory; None for METASCHED_SHARED.
    """

    def __init__(
        self,
        study: Study,
        directory: str | Path,
        *,
        sbatch: Sequence[str] = (),
        tag: str = "",
        shared: str | Path | None = None,
    ) -> None:
        self.study = study
        self.directory = Path(directory).resolve()
        self._sbatch = list(sbatch)
        self._shared = Path(shared if shared is not None else os.environ["METASCHED_SHARED"])
        name = re.sub(r"[^A-Za-z0-9_.+-]", "-", self.directory.name)[:40]
        self.app = f"{name}-{sha256(str(self.directory).encode()).hexdigest()[:12]}"
        self._tag = f"metasched app={self.app} tuner=outside {tag}".strip()
        self._seen: dict[int, float] = {}  # when a trial's job was seen last, on the monotonic clock

    @property
    def live(self) -> list[FrozenTrial]:
        """The trials that have not ended."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    def submit(self, trial: Trial, command: str) -> str:
        """Submit the job of a trial that the study has drawn, and return its Slurm job id.

        Args:
            trial: of `study.ask`.
            command: the last line of the batch script.

        Raises:
            RuntimeError: sbatch refuses the job; the message has its words.
        """
        directory = self.directory / f"trial-{trial.number}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "parameters.json").write_text(json.dumps(trial.params))
        named = [f"--comment={self._tag}", f"--job-name={self._name(trial.number)}"]
        place = [f"--chdir={directory}", "--output=out.txt"]
        done = subprocess.run(
            ["sbatch", "--parsable", *named, *place, *self._sbatch],
            input=f"#!/bin/bash\n{command}\n",
            capture_output=True,
            text=True,
            timeout=SBATCH_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"sbatch: {done.stderr.strip()}")
        self._seen[trial.number] = time.monotonic()
        return done.stdout.strip()

    def follow(self) -> int:
        """Report what the trials have measured, order the end of pruned ones, and tell the study which have ended.

        Returns:
            The number of trials that have not ended.
        """
        live = self.live
        jobs = self._jobs() if live else {}
        for frozen in live:
            job = jobs.get(self._name(frozen.number)) if jobs is not None else None
            if job is not None:
                self._seen[frozen.number] = time.monotonic()
                self._follow_one(frozen, job)
            elif jobs is not None:
                since = self._seen.setdefault(frozen.number, time.monotonic())
                if time.monotonic() - since > LOST_SECONDS:
                    self.study.tell(frozen.number, state=TrialState.FAIL)
            else:
                self._seen.pop(frozen.number, None)  # nothing is known while the daemon is silent
        return len(self.live)

    def _follow_one(self, frozen: FrozenTrial, job: dict[str, Any]) -> None:
        trial = Trial(self.study, frozen._trial_id)  # noqa: SLF001  Optuna has no other way to go on with a trial
        values = self._values(job["uid"])
        told = max(frozen.intermediate_values, default=-1)
        pruned = frozen.user_attrs.get("pruned")
        for step, value in sorted(values.items()):
            if step > told and pruned is None:
                trial.report(value, step)
                if job.get("finished") is None and trial.should_prune():
                    pruned = step
        if pruned is not None and "pruned" not in frozen.user_attrs:
            self._order(job["uid"], end=True, words=f"pruned at step {pruned}")
            trial.set_user_attr("pruned", pruned)
        if job.get("finished") is None:  # of a live job, fields at their defaults are left out
            return
        last = values[max(values)] if values else math.nan
        if pruned is not None:
            self.study.tell(frozen.number, state=TrialState.PRUNED)
        elif job["status"] == "completed" and math.isfinite(last):
            self.study.tell(frozen.number, last)
        else:
            self.study.tell(frozen.number, state=TrialState.FAIL)

    def _name(self, number: int) -> str:
        return f"{self.app}-{number}"

    def _jobs(self) -> dict[str, dict[str, Any]] | None:
        """Return this user's jobs by name, as the daemon has published them; None while it publishes nothing."""
        try:
            status = json.loads((self._shared / "status.json").read_bytes())
            live = json.loads((self._shared / "status-jobs.json").read_bytes())
        except (OSError, ValueError):
            return None
        if time.time() - status["published"] > STALE_SECONDS:
            return None
        return {job["name"]: job for job in (*status["finished"], *live["jobs"])}

    def _values(self, uid: str) -> dict[int, float]:
        """Return what a trial has given `ctx.metric`, by step; not a number where that was not finite."""
        found: dict[int, float] = {}
        files = (self._shared / "reports" / uid).glob("incarnation-*.jsonl")
        for path in sorted(files, key=lambda path: int(path.stem.rpartition("-")[2])):
            for line in path.read_bytes().splitlines():
                with suppress(ValueError, KeyError):  # the last line may be torn
                    report = json.loads(line)
                    if report["kind"] in {"steps", "end"} and "metric" in report:
                        value = report["metric"]
                        found[int(report["step"])] = math.nan if value is None else float(value)
        return found

    def _order(self, uid: str, **order: Any) -> None:
        """Write an order into the trial's directory of reports, which its trainer has made."""
        line = json.dumps({"v": 1, "kind": "order", "uid": uid, **order}).encode() + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with os.fdopen(os.open(self._shared / "reports" / uid / "app.jsonl", flags, 0o644), "wb") as file:
            file.write(line)
