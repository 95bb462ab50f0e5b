"""Decisions on the live cluster that are not carried out: for `metasched daemon --dry-run` and `metasched what-if`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from metasched.configuration.config import load
from metasched.configuration.file_names import DATABASE
from metasched.configuration.logs import configure_logs
from metasched.core.policy import installed_policies
from metasched.core.reason_words import words
from metasched.daemon.actuator import describe
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


def planned_actions(path: Path) -> Sequence[str]:
    """Decide one round and return the actions that the daemon would perform, as lines for people.

    Args:
        path: the configuration file's.

    Returns:
        A line for each action, in order, then a line for each job without an action.

    Raises:
        MetaschedError: the configuration is wrong, or Slurm cannot be read.
    """
    with read_only_controller(path) as (controller, _):
        snapshot, actions = controller.decide_and_plan()
        changed = {action.uid for action in actions}
        unchanged = (job for job in snapshot.jobs if job.uid not in changed)
        return [
            *(describe(action, snapshot) for action in actions),
            *(f"leave {job.slurm_job_id}: {words(controller.reason(job.uid))}" for job in unchanged),
        ]
