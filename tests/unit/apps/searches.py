"""Apps for tests: trials with known learning curves, in a loop without a cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from metasched.apps.app_round import AppRound, apply_apps
from metasched.core.apps import AppsState, LossPoint, TunerSettings
from metasched.core.model import Status
from tests.builders import job, snapshot

APP = "array:5"


def settings(name="halving", **options):
    """A tuner as a tag names it."""
    return TunerSettings(name, {key: float(value) for key, value in options.items()})


def trial(task, steps=None, losses=(), tuner=None, **fields):
    """The task of a job array, as a trial of halving over 1000 steps unless it names another tuner."""
    facts = {"app": APP, "tuner": tuner or settings(steps=1000), "progress_steps": steps}
    points = tuple(LossPoint(*point) for point in losses)
    return job(f"5_{task:02}", losses=points, **facts | fields)


def at(steps, loss, task=0, **fields):
    """A trial that has reported one loss, at its latest step."""
    return trial(task, steps, [(steps, loss)], **fields)


def stored(state):
    """The state as the store gives it back."""
    return AppsState(state.version, json.loads(json.dumps(state.data, allow_nan=False)))


@dataclass
class App:
    """An app whose trials come and go; each round's answer is in ``rounds``.

    ``jobs`` are the live members by uid; a job that was ended remains until it is removed.
    """

    jobs: dict
    now: float = 0.0
    completed: frozenset = frozenset()
    state: AppsState = field(default_factory=AppsState)
    rounds: list = field(default_factory=list)

    def step(self, *jobs, **fields) -> AppRound:
        """Replace or add some jobs, and decide a round 60 s later."""
        self.jobs |= {one.uid: one for one in jobs}
        self.now += 60.0
        shot = snapshot(self.jobs.values(), now=self.now, completed_trials=self.completed, **fields)
        found = apply_apps(shot, self.state)
        self.state = stored(found.state)
        assert self.state == found.state
        self.rounds.append(found)
        return found

    def remove(self, *uids):
        """End jobs as Slurm does: they are in no later snapshot."""
        for uid in uids:
            del self.jobs[uid]


def app_of(*jobs):
    """An app of these jobs, before its first round."""
    return App({one.uid: one for one in jobs})


def finished(one):
    """The job, as Slurm still lists it after its end."""
    return one.evolve(status=Status.FINISHED)
