"""The live queue under other policies, as `metasched what-if` simulates it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metasched.api.policy_choice import PolicyChoice, label, resolve
from metasched.api.table import Table
from metasched.configuration.command_paths import CommandPaths
from metasched.core.policy import installed_policies
from metasched.simulator.live_settings import START_SECONDS, live_settings

if TYPE_CHECKING:  # importing the daemon takes long
    from metasched.core.model import PlannedRun
    from metasched.simulator.what_if import Forecast
    from metasched.store import GpuUse

_USE_SECONDS = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The live jobs under the configured policy and under others.

    Attributes:
        now: the instant from which the simulations go on, unix seconds.
        current: label of the configured policy.
        others: labels of the other policies, in the order in which they were given.
        forecasts: each live job with its end by label.
        planned: when the daemon's policy plans to run a job next, by uid.
        gpu_use: how busy a job's GPUs were, else those of earlier jobs of its user and name, by uid, where imported.
        gpu_use_of_all: the same of all jobs in the last 30 days; None where nothing was imported.
    """

    now: float
    current: str
    others: tuple[str, ...]
    forecasts: tuple[Forecast, ...]
    planned: Mapping[str, PlannedRun]
    gpu_use: Mapping[str, GpuUse]
    gpu_use_of_all: GpuUse | None

    @property
    def jobs(self) -> Table[Forecast]:
        """The jobs, with a column of ends (unix seconds, None for never) and of preemptions for each policy."""
        columns = (f"ends {name}" for name in (self.current, *self.others))
        return Table(self.forecasts, row=self.row, shown=("slurm_job_id", "name", "user", "work_from", *columns))

    def row(self, one: Forecast) -> dict[str, Any]:
        """Return a job's columns as plain values."""
        planned = self.planned.get(one.job.uid)
        idle = self.idle_gpu_hours(one)
        return {
            **named(one),
            **{f"ends {name}": end for name, end in one.ends.items()},
            **{f"preemptions {name}": count for name, count in one.preemptions.items()},
            **{f"gpu_hours {name}": hours for name, hours in one.gpu_hours.items()},
            **{f"idle_gpu_hours {name}": None if idle is None else idle[name] for name in one.gpu_seconds},
            "planned": None if planned is None else asdict(planned),
            "gpu_use": None if (use := self.gpu_use.get(one.job.uid)) is None else asdict(use),
        }

    def idle_gpu_hours(self, one: Forecast) -> Mapping[str, float] | None:
        """Return the GPU-hours from now on in which GPUs of a job are idle, by policy, if it uses them as measured.

        None where its use was not imported.
        """
        use = self.gpu_use.get(one.job.uid)
        return None if use is None else {name: use.idle * held / 3600 for name, held in one.gpu_seconds.items()}

    def _repr_html_(self) -> str:
        """Return the jobs as an HTML table, for notebooks."""
        return self.jobs._repr_html_()


def named(one: Forecast) -> dict[str, Any]:
    """Return the fields by which people know a job, and the source of the estimate of its work."""
    job = one.job
    return {
        "uid": job.uid,
        "slurm_job_id": job.slurm_job_id,
        "name": job.name,
        "user": job.user,
        "work_from": one.how,
    }


def what_if(
    policies: Sequence[PolicyChoice],
    *,
    config: str | Path | None = None,
    assume_hours: float = 4.0,
    speed_up: float = 0.9,
    restart_seconds: float = START_SECONDS,
    progress: Callable[[int, int], object] | None = None,
) -> WhatIf:
    """Simulate the present queue and cluster from now on, under the configured policy and under others.

    Nothing is changed. The call needs what the daemon needs: Slurm's commands, the configuration and the database.

    Args:
        policies: ``NAME[:KEY=VALUE,...]`` of installed policies, or subclasses of ``Policy``.
        config: configuration file; None for ``$METASCHED_CONFIG``, else ``/etc/metasched/metasched.toml``.
        assume_hours: duration of a job of which nothing is known.
        speed_up: exponent of the growth of speed with the number of GPUs, beyond the sizes that were measured.
        restart_seconds: from getting its GPUs to a job's first step, where no restart was measured.
        progress: is called with the number of jobs that have ended under all policies so far, and of all to end.

    Raises:
        MetaschedError: the configuration is wrong, Slurm or the database cannot be read, or a policy is not known.
    """
    from metasched.daemon.dry_run import read_only_controller  # noqa: PLC0415  importing the daemon takes long
    from metasched.simulator.records import Settings  # noqa: PLC0415
    from metasched.simulator.what_if import estimate_all, forecast  # noqa: PLC0415

    registry = installed_policies()
    chosen = {}
    for choice in policies:
        name, parameters, _ = resolve(choice, registry)
        found = registry.get(name)
        chosen[label(choice)] = found(found.Parameters.model_validate(parameters))
    paths = CommandPaths(None if config is None else Path(config))
    with read_only_controller(paths.config) as (controller, store):
        snapshot = controller.current_snapshot(fits_iterations=True)
        schedule = controller.config.schedule
        estimates = estimate_all(store, snapshot.jobs, assume_hours * 3600, speed_up)
        settings = Settings(**live_settings(schedule.round_seconds, schedule.min_round_seconds, restart_seconds))
        current = f"{controller.policy.name} (now)"
        compared = {current: controller.policy, **chosen}
        states = {name: store.policy_state(policy.name) for name, policy in compared.items()}
        rows = forecast(snapshot, estimates, compared, settings, states, store.apps_state(), progress)
        jobs = [one.job for one in rows]
        uses = {job.uid: store.gpu_use(job.uid) or store.gpu_use_of_earlier(job.user, job.name) for job in jobs}
        return WhatIf(
            now=snapshot.now,
            current=current,
            others=tuple(chosen),
            forecasts=tuple(rows),
            planned=store.planned_runs(),
            gpu_use={uid: use for uid, use in uses.items() if use is not None},
            gpu_use_of_all=store.gpu_use_since(snapshot.now - _USE_SECONDS),
        )
