"""Rows of shadow policies: what they would have decided, round by round."""

from __future__ import annotations

import json
from collections.abc import Iterable

from metasched.store.connection import Connection
from metasched.store.records import ShadowRecord
from metasched.store.row_conversion import as_json

MOST_SHADOW_JOBS = 100
"""Most uids of a list of jobs that are stored."""
MOST_SHADOW_ROWS = 20_000
"""Most rows; the oldest rounds are deleted."""
_COLUMNS = (
    "round, at, policy, live, gpus, would_run, would_not_run, jct, worst_rho, live_jct, live_worst_rho, seconds, error"
)


class ShadowRows(Connection):
    """Reads and writes of shadow decisions."""

    def commit_shadows(self, records: Iterable[ShadowRecord]) -> None:
        """Insert rows, and delete the oldest ones beyond ``MOST_SHADOW_ROWS``."""
        with self.transaction():
            self._write_many(
                f"INSERT OR REPLACE INTO shadows ({_COLUMNS}) VALUES ({', '.join('?' * 13)})",  # noqa: S608  constants
                [
                    (
                        *(one.round, one.at, one.policy, one.live, one.gpus),
                        *(as_json(one.would_run[:MOST_SHADOW_JOBS]), as_json(one.would_not_run[:MOST_SHADOW_JOBS])),
                        *(one.jct, one.worst_rho, one.live_jct, one.live_worst_rho, one.seconds, one.error),
                    )
                    for one in records
                ],
            )
            self._write(
                "DELETE FROM shadows WHERE round <= "
                "(SELECT round FROM shadows ORDER BY round DESC, policy DESC LIMIT 1 OFFSET ?)",
                [MOST_SHADOW_ROWS],
            )

    def recent_shadows(self, limit: int, policy: str | None = None) -> list[ShadowRecord]:
        """The latest rows, of all shadow policies or of one, newest first."""
        condition, parameters = ("", []) if policy is None else ("WHERE policy = ? ", [policy])
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM shadows {condition}ORDER BY round DESC, policy LIMIT ?",  # noqa: S608  constants
            [*parameters, limit],
        )
        return [
            ShadowRecord(number, at, policy, live, gpus, _uids(run), _uids(not_run), *rest)
            for number, at, policy, live, gpus, run, not_run, *rest in rows
        ]


def _uids(text: str | None) -> tuple[str, ...]:
    return tuple(json.loads(text)) if text else ()
