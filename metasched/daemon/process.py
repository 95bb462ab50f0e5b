"""The process: configuration, lock, signals and timer. It wires; what it drives is the controller."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import structlog
from apscheduler.events import EVENT_JOB_REMOVED
from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.base import BaseTrigger

from metasched.configuration.config import Config, Log, differences, load
from metasched.core.errors import MetaschedError
from metasched.core.policy import Policy, Registry, installed_policies
from metasched.core.reason_words import words
from metasched.daemon.actuator import describe
from metasched.daemon.background_solver import check_portable
from metasched.daemon.controller import Controller
from metasched.daemon.failover import COPIES, Copies, take_over
from metasched.daemon.systemd_notify import tell
from metasched.installation.plugin import refuse_another
from metasched.shared_dir.lock import DaemonLock
from metasched.shared_dir.mailbox import Mailbox
from metasched.slurm.client import SlurmClient
from metasched.slurm.client_choice import make_client
from metasched.slurm.command_line_client import CommandLineClient
from metasched.slurm.errors import SlurmUnavailableError
from metasched.slurm.read_only_client import ReadOnlyClient
from metasched.store import MissingStoreError, Store

# Signals only set flags (the scheduler is not re-entrant), so the flags are looked at this often.
TICK_SECONDS = 0.5
DATABASE = "metasched.db"
LOCK = "daemon.lock"
# What is read at the start alone, besides the section [paths].
FIXED = (("slurm", "client"), ("slurm", "timeout_seconds"))
STANDBY_SECONDS = 2.0  # between a standby's looks at the lock
HELD = "stop it first, or stand by for it with --standby"

log = structlog.get_logger()


class StateDirectoryError(MetaschedError):
    """A directory of the configuration cannot be used."""

    def __init__(self, key: str, path: Path, error: OSError) -> None:
        super().__init__(f"[paths] {key} = {path}: {error.strerror}; make it a directory that the daemon can write")


class PolicyStartError(MetaschedError):
    """The configured policy cannot be made."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(
            f"[policy] name = {name!r}: it does not start ({type(error).__name__}: {error}); "
            "tell who provides it, or choose another, see `metasched policies`"
        )


def configure_logs(options: Log) -> None:
    """Send the daemon's logs to standard error, for people or for machines."""
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer() if options.format == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[options.level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(stream=sys.stderr, level=options.level.upper(), format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("apscheduler").setLevel(logging.WARNING)


def make_policy(config: Config, registry: Registry) -> Policy:
    """The configured policy with its parameters.

    Raises:
        PolicyStartError: its own code fails.
        NotPortableError: it works in another process, and cannot be sent there.
    """
    kind = registry.get(config.policy.name)
    try:
        policy = kind(config.policy.parameters)
        beside = policy.solves_in_background
    except Exception as error:  # a policy may be third-party code
        raise PolicyStartError(config.policy.name, error) from error
    if beside:
        check_portable(policy)
    return policy


class Pace(BaseTrigger):  # type: ignore[misc]  # apscheduler has no types
    """A timer whose period is asked for after each run: ``pause()`` seconds, or None for never again."""

    def __init__(self, pause: Callable[[], float | None]) -> None:
        self._pause = pause

    def get_next_fire_time(self, previous: dt.datetime | None, now: dt.datetime) -> dt.datetime | None:
        """The next instant, counted from the present (``now`` is from before the last run)."""
        del previous, now
        pause = self._pause()
        return None if pause is None else dt.datetime.now(dt.UTC) + dt.timedelta(seconds=max(pause, 0.001))


class Clockwork(BlockingScheduler):  # type: ignore[misc]  # apscheduler has no types
    """A scheduler that goes on when the clock is set back, where others wait until it is as late again."""

    def _process_jobs(self) -> float | None:
        wait: float | None = super()._process_jobs()
        if wait is None or wait <= 2 * TICK_SECONDS:
            return wait
        for job in self.get_jobs():
            job.modify(next_run_time=dt.datetime.now(dt.UTC))
        return 0.0


class Daemon:
    """Polls until it is told to stop. SIGTERM and SIGINT end it and leave jobs running; SIGHUP reloads the file.

    Everything happens in one thread (SQLite wants that, and the order of things is then plain): the scheduler runs
    its one job in the thread that receives the signals.
    """

    def __init__(self, path: Path, config: Config, registry: Registry, controller: Controller, copies: Copies) -> None:
        self._path = path
        self._config = config
        self._registry = registry
        self._controller = controller
        self._copies = copies
        self._stopping = False
        self._reload = False
        self._due = 0.0
        self._failure: Exception | None = None
        self._scheduler = Clockwork(executors={"default": DebugExecutor()}, timezone=dt.UTC)

    def run(self) -> None:
        """Poll until a signal ends it.

        Raises:
            MetaschedError: the store or the lock is lost.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._scheduler.add_listener(lambda _: self._scheduler.shutdown(wait=False), EVENT_JOB_REMOVED)
        # With the default grace time a poll that is a second late, after a stall, would silently be dropped.
        self._scheduler.add_job(
            self._tick, Pace(self._pause), id="tick", max_instances=1, coalesce=True, misfire_grace_time=None
        )
        self._scheduler.start()
        if self._failure is not None:
            raise self._failure

    def _pause(self) -> float | None:
        return None if self._stopping else min(self._due - time.monotonic(), TICK_SECONDS)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGHUP:
            self._reload = True
        else:
            self._stopping = True

    def _tick(self) -> None:
        try:
            if self._reload:
                self._reload = False
                self._reload_config()
                self._due = 0.0
            if not self._stopping and time.monotonic() >= self._due:
                self._due = time.monotonic() + self._controller.poll()
            tell()
        except Exception as error:  # whatever it is, the process ends with it, and a supervisor starts it afresh
            log.exception("daemon_fails")
            self._failure = error
            self._stopping = True

    def _reload_config(self) -> None:
        try:
            new = load(self._path, self._registry)
            policy = make_policy(new, self._registry)
        except MetaschedError as error:
            self._refuse(str(error))
            return
        changes = differences(self._config, new)
        if fixed := [str(one) for one in changes if one.section == "paths" or (one.section, one.key) in FIXED]:
            self._refuse(f"{'; '.join(fixed)}: that can only change with a restart")
            return
        log.info("reloaded", changes=[str(one) for one in changes] or "none")
        self._config = new
        configure_logs(new.log)
        self._copies.every = new.standby.copy_seconds
        self._controller.reconfigure(new, policy)

    @staticmethod
    def _refuse(error: str) -> None:
        log.error("reload_refused", error=error, effect="the old configuration stays in force")


def _make_directory(key: str, path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateDirectoryError(key, path, error) from None


def run(path: Path, *, standby: bool = False) -> None:
    """Run the daemon under a configuration file until a signal ends it.

    Args:
        path: of the configuration.
        standby: while another daemon runs for this cluster, wait for its end instead of refusing to start.

    Raises:
        MetaschedError: it cannot start, or cannot go on; the message says why and what to do.
    """
    registry = installed_policies()
    config = load(path, registry)
    configure_logs(config.log)
    _make_directory("state", config.paths.state)
    _make_directory("shared", config.paths.shared)
    mailbox, database = Mailbox(config.paths.shared), config.paths.state / DATABASE
    lock_path, copies_path = config.paths.shared / LOCK, config.paths.shared / COPIES
    with (
        DaemonLock.wait(lock_path, STANDBY_SECONDS, _standing_by()) if standby else DaemonLock(lock_path, HELD) as lock
    ):
        take_over(database, copies_path)
        with (
            Copies(database, copies_path, config.standby.copy_seconds, lock.check) as copies,
            Store.open(database) as store,
        ):
            client = make_client(config.slurm.client, config.slurm.timeout_seconds, before_write=lock.check)
            try:
                policy = make_policy(config, registry)
                controller = _controller(config, policy, client, store=store, mailbox=mailbox, lock=lock)
                log.info("started", config=str(path), policy=config.policy.name)
                tell("READY=1", f"STATUS=schedules under policy {config.policy.name}")
                with contextlib.closing(controller):
                    Daemon(path, config, registry, controller, copies).run()
            finally:
                tell("STOPPING=1")
                client.close()
    log.info("stopped", jobs="left as they are")


def _standing_by() -> Callable[[str], None]:
    """What a standby says of the daemon that it waits for: a line for each, and signs of life."""
    known: set[str] = set()

    def look(holder: str) -> None:
        if holder not in known:
            log.info("standing_by", daemon=holder or "not known yet")
            known.add(holder)
        tell("READY=1", f"STATUS=stands by for the daemon of {holder}")

    return look


def _controller(
    config: Config, policy: Policy, client: SlurmClient, *, store: Store, mailbox: Mailbox, lock: DaemonLock
) -> Controller:
    """The controller, as soon as Slurm answers.

    Raises:
        OtherSharedError: the cluster's jobs belong to another shared directory, and perhaps to a daemon there.
    """
    while True:
        try:
            refuse_another(client.settings(), config.paths.shared)
            return Controller(config, client, store, mailbox, policy, lock=lock)
        except SlurmUnavailableError as error:
            log.warning("slurm_unreachable", error=str(error), effect="waiting for it")
            tell("READY=1", "STATUS=waits for Slurm")
            time.sleep(config.schedule.poll_seconds)


@contextlib.contextmanager
def onlooker(path: Path) -> Iterator[tuple[Controller, Store]]:
    """A controller that can look and decide, on a copy of the store; nothing is written to Slurm, store or mailbox.

    Raises:
        MetaschedError: the configuration is wrong, or Slurm cannot be read.
    """
    registry = installed_policies()
    config = load(path, registry)
    configure_logs(config.log.model_copy(update={"level": "error"}))
    client = ReadOnlyClient(CommandLineClient(timeout=config.slurm.timeout_seconds))
    with tempfile.TemporaryDirectory(prefix="metasched-look-") as scratch:
        database = config.paths.state / DATABASE
        with contextlib.suppress(MissingStoreError), Store.open(database, read_only=True) as live:
            live.copy_to(Path(scratch) / DATABASE)
        with Store.open(Path(scratch) / DATABASE) as store:
            try:
                yield Controller(config, client, store, Mailbox(Path(scratch)), make_policy(config, registry)), store
            finally:
                client.close()


def dry_run(path: Path) -> Sequence[str]:
    """Decide one round and say what would be done; nothing is written to Slurm, the store or the mailbox.

    Returns:
        A line for each action, in order, then one for each job that is left as it is.

    Raises:
        MetaschedError: the configuration is wrong, or Slurm cannot be read.
    """
    with onlooker(path) as (controller, _):
        snapshot, actions = controller.plan_of_a_round()
        idle = {job.uid for job in snapshot.jobs} - {action.uid for action in actions}
        return [
            *(describe(action, snapshot) for action in actions),
            *(
                f"leave {job.slurm_job_id}: {words(controller.reason(job.uid))}"
                for job in snapshot.jobs
                if job.uid in idle
            ),
        ]
