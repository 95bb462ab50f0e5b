"""Decisions on the live cluster that are not carried out: for `metasched daemon --dry-run` and `metasched what-if`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from metasched.configuration.config import load
from metasched.configuration.file_names import DATABASE
from metasched.configuration.logs import configure_logs
from metasched.core.model import Placement, Start
from metasched.core.policy import installed_policies
from metasched.core.reason_words import words
from metasched.core.reasons import Reason
from metasched.daemon.actuator import ACTION_KINDS, describe
from metasched.daemon.controller import Controller
from metasched.daemon.process import make_policy
from metasched.shared_dir.mailbox import Mailbox
from metasched.slurm.read_only_client import ReadOnlyClient
from metasched.store import MissingStoreError, Store


@contextlib.contextmanager
def read_only_controller(path: Path) -> Iterator[tuple[Controller, Store]]:
    """Yield a controller that observes and decides on a copy of the store, and that copy.

    Nothing is written to Slurm, to the daemon's store or to its mailbox.

    Args:
        path: the configuration file's.

    Raises:
        MetaschedError: the configuration is wrong, or Slurm cannot be read.
    """
    registry = installed_policies()
    config = load(path, registry)
    configure_logs(config.log.model_copy(update={"level": "error"}))
    client = ReadOnlyClient(timeout=config.slurm.timeout_seconds)
    with tempfile.TemporaryDirectory(prefix="metasched-dry-run-") as scratch:
        database = config.paths.state / DATABASE
        with contextlib.suppress(MissingStoreError), Store.open(database, read_only=True) as live:
            live.copy_to(Path(scratch) / DATABASE)
        with Store.open(Path(scratch) / DATABASE) as store:
            try:
                policy, mailbox = make_policy(config, registry), Mailbox(Path(scratch))
                yield Controller(config, client, client.settings(), store, mailbox, policy), store
            finally:
                client.close()


@dataclass(frozen=True, slots=True)
class PlannedAction:
    """What the daemon would do to one job now.

    Attributes:
        action: kind of the action, as stored; ``leave`` for none.
        uid: the job.
        slurm_job_id: its Slurm job id.
        text: the action in one line, for people.
        reason: why; None where the round says nothing about the job.
        placement: nodes and GPUs that a started job would get; None for other actions.
    """

    action: str
    uid: str
    slurm_job_id: str
    text: str
    reason: Reason | None
    placement: Placement | None = None


def planned_actions(path: Path) -> Sequence[PlannedAction]:
    """Decide one round and return the actions that the daemon would perform.

    Args:
        path: the configuration file's.

    Returns:
        The actions, in order, then an entry for each job without an action.

    Raises:
        MetaschedError: the configuration is wrong, or Slurm cannot be read.
    """
    with read_only_controller(path) as (controller, _):
        snapshot, actions = controller.decide_and_plan()
        changed = {action.uid for action in actions}
        unchanged = (job for job in snapshot.jobs if job.uid not in changed)
        planned = [
            PlannedAction(
                ACTION_KINDS[type(action)],
                action.uid,
                snapshot.job[action.uid].slurm_job_id,
                describe(action, snapshot),
                action.reason,
                action.placement if isinstance(action, Start) else None,
            )
            for action in actions
        ]
        for job in unchanged:
            why = controller.reason(job.uid)
            planned.append(
                PlannedAction("leave", job.uid, job.slurm_job_id, f"leave {job.slurm_job_id}: {words(why)}", why)
            )
        return planned
