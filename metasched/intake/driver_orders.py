"""Reading of what the drivers of apps ask for their trials, under the tuner ``outside``."""

from __future__ import annotations

from collections.abc import Iterable

from metasched.apps.tuners.outside import Outside
from metasched.core.apps import TrialOrder
from metasched.core.model import Job
from metasched.intake.report_reading import user_id
from metasched.shared_dir.app_orders import (
    FILE_NAME,
    MAX_BYTES,
    FileVersion,
    OrderFile,
    OrdersTooLargeError,
    read_orders,
)
from metasched.shared_dir.mailbox import Mailbox
from metasched.shared_dir.owned_files import RefusedFileError
from metasched.store import Store


class DriverOrders:
    """Reads the files of orders of live trials, each again when it has changed."""

    def __init__(self, store: Store, mailbox: Mailbox) -> None:
        self._store = store
        self._mailbox = mailbox
        self._known: dict[str, tuple[FileVersion, OrderFile]] = {}  # by uid of the job in whose directory they lie

    def read(self, jobs: Iterable[Job], now: float) -> tuple[TrialOrder, ...]:
        """The orders that hold now; a file that cannot be read is an event of its job, and no error.

        Args:
            jobs: the live jobs.
            now: unix seconds.
        """
        trials = [
            job for job in jobs if job.tuner is not None and job.tuner.name == Outside.name and job.app is not None
        ]
        self._known = {job.uid: self._known[job.uid] for job in trials if job.uid in self._known}
        for job in trials:
            self._read(job, job.app or "", now)
        return tuple(order for _, file in self._known.values() for order in file.orders)

    def _read(self, job: Job, app: str, now: float) -> None:
        known = self._known.get(job.uid)
        problem = None
        try:
            found = read_orders(self._mailbox.reports, job.uid, user_id(job.user), app, known[0] if known else None)
        except FileNotFoundError:
            self._known.pop(job.uid, None)
            return
        except KeyError:
            problem = f"no user {job.user} is known here"
        except OrdersTooLargeError:
            problem = f"has more than {MAX_BYTES} bytes: keep the latest order of each trial"
        except RefusedFileError as error:
            problem = str(error)
        except OSError as error:
            problem = error.strerror or str(error)
        else:
            if found is not None:
                self._known[job.uid] = found
                if found[1].refused:
                    text = f"{FILE_NAME}: lines that are not what the protocol says were refused"
                    self._store.event_once("orders-lines-refused", text, job.uid, at=now)
            return
        self._known.pop(job.uid, None)
        self._store.event_once("orders-refused", f"reports/{job.uid}/{FILE_NAME}: {problem}", job.uid, at=now)
