"""MLflow: a run that each run of the job finds again by a tag, because MLflow chooses the ids of its runs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

if TYPE_CHECKING:
    from collections.abc import Mapping

TAG = "metasched.run"
"""The tag with the id of the job's tracker run."""
STATUSES = {"stopped": "SCHEDULED", "finished": "FINISHED", "failed": "FAILED"}


class MlflowRun:
    """A run of MLflow; see `TrackerRun`.

    Args:
        run_id: the value of its tag.
        experiment: the name of the experiment, made where there is none.
        tracking_uri: the server or store; by default as MLflow's variables say.
        run_name: the name of a new run.
        params: parameters of a new run.
        tags: further tags of a new run.
    """

    def __init__(
        self,
        run_id: str,
        *,
        experiment: str | None = None,
        tracking_uri: str | None = None,
        run_name: str | None = None,
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self._client = MlflowClient(tracking_uri)
        name = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        found = self._client.get_experiment_by_name(name)
        experiment_id = found.experiment_id if found else self._client.create_experiment(name)
        earlier = self._client.search_runs([experiment_id], f"tags.`{TAG}` = '{run_id}'", max_results=1)
        if earlier:
            self.handle = earlier[0]
            self._client.update_run(self._id, status="RUNNING")
            return
        self.handle = self._client.create_run(experiment_id, run_name=run_name, tags={**(tags or {}), TAG: run_id})
        if params:
            self._client.log_batch(self._id, params=[Param(key, str(value)) for key, value in params.items()])

    @property
    def _id(self) -> str:
        found: str = self.handle.info.run_id
        return found

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values at an optimizer step; returns when the store has them."""
        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def close(self, outcome: str) -> None:
        """Set the run's status: SCHEDULED, where another run of the job continues it; none, where one has begun to."""
        if outcome == "superseded":
            return
        if outcome == "stopped":
            self._client.update_run(self._id, status=STATUSES[outcome])
        else:
            self._client.set_terminated(self._id, STATUSES[outcome])


def open_run(run_id: str, options: dict[str, Any]) -> MlflowRun:
    """Return the run with this id; the options are those of `MlflowRun`."""
    return MlflowRun(run_id, **options)
