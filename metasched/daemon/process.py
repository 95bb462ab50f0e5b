"""The daemon's process: start, timer, signals and end; the controller does the scheduling.

At the start the configuration is read, the lock of the shared directory is taken (or waited for, as a standby), the
latest store is chosen, and Slurm is waited for. Then the controller polls in one thread, whenever the last poll said.
SIGHUP reads the configuration again, SIGTERM and SIGINT end the process, and an error that no poll can handle ends it
as well, so that a service manager starts it afresh. While another process keeps the store locked, the daemon waits;
then a new controller continues from the store, as after a crash. Jobs run on in all cases.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import structlog
from apscheduler.events import EVENT_JOB_REMOVED
from apscheduler.executors.debug import DebugExecutor

from metasched.configuration.config import Config, differences, load
from metasched.configuration.file_names import COPIES, DATABASE, LOCK
from metasched.configuration.logs import configure_logs
from metasched.core.errors import MetaschedError
from metasched.core.policy import Policy, Registry, installed_policies
from metasched.daemon.background_solver import check_portable
from metasched.daemon.controller import Controller
from metasched.daemon.failover import StoreCopier, take_over
from metasched.daemon.garbage import GarbageCollection
from metasched.daemon.metrics_publisher import FILE_NAME as METRICS_FILE
from metasched.daemon.poll_timer import TICK_SECONDS, ClockTolerantScheduler, VariablePause
from metasched.daemon.side_work import SideWork
from metasched.daemon.store_watch import StoreLockWatch
from metasched.daemon.systemd_notify import notify
from metasched.installation.job_submit_lua import check_shared, read_plugin
from metasched.metrics.endpoint import endpoint
from metasched.shared_dir.lock import DaemonLock
from metasched.shared_dir.mailbox import Mailbox
from metasched.slurm.client import SlurmClient, SlurmSettings
from metasched.slurm.client_factory import make_client
from metasched.slurm.errors import SlurmUnavailableError
from metasched.store import BusyStoreError, Store
from metasched.store.permissions import make_private

# What is read only at the start, besides the section [paths].
FIXED = (("slurm", "client"), ("slurm", "timeout_seconds"), ("metrics", "listen"))
STANDBY_SECONDS = 2.0
"""Time between a standby's attempts to take the lock."""
LOCK_HELD_ADVICE = "stop it first, or stand by for it with --standby"

log = structlog.get_logger()


class StateDirectoryError(MetaschedError):
    """A directory of the configuration cannot be used."""

    def __init__(self, key: str, path: Path, error: OSError) -> None:
        super().__init__(f"[paths] {key} = {path}: {error.strerror}; make it a directory that the daemon can write")


class PolicyStartError(MetaschedError):
    """The configured policy cannot be constructed."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(
            f"[policy] name = {name!r}: it does not start ({type(error).__name__}: {error}); "
            "tell who provides it, or choose another, see `metasched policies`"
        )


def make_policy(config: Config, registry: Registry) -> Policy:
    """Construct the configured policy with its parameters.

    Raises:
        PolicyStartError: the policy's own code fails.
        NotPortableError: the policy computes in another process, and cannot be sent there.
    """
    kind = registry.get(config.policy.name)
    try:
        policy = kind(config.policy.parameters)
        solves_in_background = policy.solves_in_background
    except Exception as error:  # a policy may be third-party code
        raise PolicyStartError(config.policy.name, error) from error
    if solves_in_background:
        check_portable(policy)
    return policy


class ReloadRequests:
    """SIGHUP as a request to reload the configuration, from the construction on: no SIGHUP ends the process."""

    def __init__(self) -> None:
        self._pending = False
        signal.signal(signal.SIGHUP, self._on_hangup)

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._pending = True

    def take(self) -> bool:
        """Whether a request has come since the last call."""
        pending, self._pending = self._pending, False
        return pending


class Daemon:
    """Polls until a signal or an error ends it; SIGTERM and SIGINT end it, SIGHUP reloads the configuration.

    Everything happens in the thread that receives the signals, because SQLite wants one thread: the timer calls one
    function there.

    Args:
        path: of the configuration.
        config: the configuration in force.
        registry: the installed policies.
        make_controller: makes a controller from the store, for a configuration and its policy.
        policy: the configured policy.
        store: opened in this thread.
        copier: of the store.
        reloads: requests to reload the configuration, some of which may have come already.
    """

    def __init__(  # noqa: PLR0917  its collaborators
        self,
        path: Path,
        config: Config,
        registry: Registry,
        make_controller: Callable[[Config, Policy], Controller],
        policy: Policy,
        store: Store,
        copier: StoreCopier,
        reloads: ReloadRequests,
    ) -> None:
        self._path = path
        self._config = config
        self._registry = registry
        self._make_controller = make_controller
        self._policy = policy
        self._store = store
        self._store_lock = StoreLockWatch(config.paths.shared)
        self._garbage = GarbageCollection()
        self._controller: Controller | None = None
        self._copier = copier
        self._stopping = False
        self._reloads = reloads
        self._due = 0.0
        self._failure: Exception | None = None
        self._scheduler = ClockTolerantScheduler(executors={"default": DebugExecutor()}, timezone=dt.UTC)

    def run(self) -> None:
        """Poll until a signal ends it.

        Raises:
            MetaschedError: the store or the lock is lost.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._scheduler.add_listener(lambda _: self._scheduler.shutdown(wait=False), EVENT_JOB_REMOVED)
        # With the default grace time a poll that is a second late, for example after a stall, is silently dropped.
        self._scheduler.add_job(
            self._tick, VariablePause(self._pause), id="tick", max_instances=1, coalesce=True, misfire_grace_time=None
        )
        try:
            self._scheduler.start()
        finally:
            self._drop_controller()
            self._garbage.end()
        if self._failure is not None:
            raise self._failure

    def _pause(self) -> float | None:
        return None if self._stopping else min(self._due - time.monotonic(), TICK_SECONDS)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._stopping = True

    def _tick(self) -> None:
        try:
            if self._reloads.take():
                self._reload_config()
                self._due = 0.0
            if not self._stopping and time.monotonic() >= self._due:
                self._due = time.monotonic() + self._poll()
            notify()
        except Exception as error:  # any error ends the process, and a service manager starts it afresh
            log.exception("daemon_failed")
            self._failure = error
            self._stopping = True

    def _poll(self) -> float:
        """Run one poll, or wait for another process's lock on the store; returns seconds until the next poll."""
        try:
            self._store.require_writable()  # a poll that cannot be recorded should not begin
            if self._controller is None:
                self._controller = self._make_controller(self._config, self._policy)
            pause = self._controller.poll()
            self._garbage.after_poll()
        except BusyStoreError as error:
            self._drop_controller()
            self._store_lock.note_locked(error)
            return self._config.schedule.poll_seconds
        self._store_lock.note_free()
        return pause

    def _drop_controller(self) -> None:
        if self._controller is not None:
            self._controller.close()
            self._controller = None
            self._garbage.search_all_next()

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
        self._config, self._policy = new, policy
        configure_logs(new.log)
        self._copier.every = new.standby.copy_seconds
        if self._controller is not None:
            self._controller.reconfigure(new, policy)
            self._garbage.search_all_next()  # for the policy before

    @staticmethod
    def _refuse(error: str) -> None:
        log.error("reload_refused", error=error, effect="the old configuration stays in force")


@contextlib.contextmanager
def _naming(key: str, path: Path) -> Iterator[None]:
    """Turn errors of the file system into an error that names the key of the configuration."""
    try:
        yield
    except OSError as error:
        raise StateDirectoryError(key, path, error) from None


def run(path: Path, *, standby: bool = False) -> None:
    """Run the daemon under a configuration file until a signal ends it.

    Args:
        path: of the configuration.
        standby: while another daemon runs for this cluster, wait for its end instead of refusing to start.

    Raises:
        MetaschedError: the daemon cannot start, or cannot continue; the message says why and what to do.
    """
    reloads = ReloadRequests()
    registry = installed_policies()
    config = load(path, registry)
    configure_logs(config.log)
    database = config.paths.state / DATABASE
    with _naming("state", config.paths.state):
        make_private(config.paths.state, database)
    with _naming("shared", config.paths.shared):
        config.paths.shared.mkdir(parents=True, exist_ok=True)
    mailbox = Mailbox(config.paths.shared)
    lock_path, copies_path = config.paths.shared / LOCK, config.paths.shared / COPIES
    with (
        DaemonLock.wait(lock_path, STANDBY_SECONDS, _report_standby())
        if standby
        else DaemonLock(lock_path, LOCK_HELD_ADVICE) as lock
    ):
        store_lock, pause = StoreLockWatch(config.paths.shared), config.schedule.poll_seconds
        store_lock.until_free(lambda: take_over(database, copies_path), pause)
        with (
            StoreCopier(database, copies_path, config.standby.copy_seconds, lock.check) as copier,
            store_lock.until_free(lambda: Store.open(database), pause) as store,
        ):
            client = make_client(config.slurm.client, config.slurm.timeout_seconds, before_write=lock.check)
            try:
                policy = make_policy(config, registry)
                settings = _settings_of_slurm(config, client)

                def controller(config: Config, policy: Policy) -> Controller:
                    side_work = SideWork(config, store)
                    return Controller(config, client, settings, store, mailbox, policy, lock=lock, side_work=side_work)

                log.info("started", config=str(path), policy=config.policy.name)
                notify("READY=1", f"STATUS=schedules under policy {config.policy.name}")
                with endpoint(config.metrics.listen, config.paths.shared / METRICS_FILE):
                    Daemon(path, config, registry, controller, policy, store, copier, reloads).run()
            finally:
                notify("STOPPING=1")
                client.close()
    log.info("stopped", jobs="left as they are")


def _report_standby() -> Callable[[str], None]:
    """Return a function that logs each daemon that a standby waits for once, and sends heartbeats."""
    known: set[str] = set()

    def report(holder: str) -> None:
        if holder not in known:
            log.info("standing_by", daemon=holder or "not known yet")
            known.add(holder)
        notify("READY=1", f"STATUS=stands by for the daemon of {holder}")

    return report


def _settings_of_slurm(config: Config, client: SlurmClient) -> SlurmSettings:
    """Wait until Slurm answers, and return its settings.

    Raises:
        OtherSharedError: job_submit.lua names another shared directory, where another daemon may run.
    """
    while True:
        try:
            settings = client.settings()
        except SlurmUnavailableError as error:
            log.warning("slurm_unreachable", error=str(error), effect="waiting for it")
            notify("READY=1", "STATUS=waits for Slurm")
            time.sleep(config.schedule.poll_seconds)
        else:
            check_shared(read_plugin(settings) or "", config.paths.shared)
            return settings
