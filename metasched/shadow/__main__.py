"""The process of shadow policies: ``python -m metasched.shadow TASK``, which only the daemon starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from metasched.core.model import Placement
from metasched.core.policy import Policy, PolicyState, installed_policies
from metasched.core.policy_text import PolicyTextError, parse_policy
from metasched.forecast.queue_forecast import Effort, Situation, TooSlowError
from metasched.forecast.round_follower import MOST_CPU_SECONDS, Budget, Task, run_follower
from metasched.forecast.situation import read_situation
from metasched.shadow.result_file import ShadowResult, encode_shadows
from metasched.shadow.shadow_round import Prospect, decide, prospect, shadow_situation
from metasched.simulator.records import Settings
from metasched.store import ShadowRecord, Store

HORIZON_SECONDS = 30 * 86400.0

log = structlog.get_logger()


class ShadowWork:
    """The work on a round: each shadow policy decides it, and its prospect is simulated beside the live policy's.

    Args:
        policies: the shadow policies, by the text that names them.
        settings: how the cluster behaves in simulations.
        jobs: most live jobs of a simulation.
    """

    def __init__(self, policies: Mapping[str, Policy], settings: Settings, jobs: int) -> None:
        self._policies = policies
        self._settings = settings
        self._jobs = jobs
        self._states: dict[str, PolicyState] = {}

    def __call__(self, store: Store, budget: Budget) -> bytes:
        """Return the content of the file of results."""
        live = read_situation(store, installed_policies(), self._settings, Effort(jobs=self._jobs))
        decisions = store.decisions_of(live.snapshot.round)
        placed = {one.uid: one.granted for one in decisions if one.granted is not None}
        live_prospect = self._prospect(live, budget)
        records = [
            self._record(text, policy, live, placed, live_prospect, budget) for text, policy in self._policies.items()
        ]
        return encode_shadows(ShadowResult(tuple(records)))

    def _record(  # noqa: PLR0917  a round and what is known of it
        self,
        text: str,
        policy: Policy,
        live: Situation,
        placed: Mapping[str, Placement],
        live_prospect: Prospect | None,
        budget: Budget,
    ) -> ShadowRecord:
        begun = budget.used
        record = ShadowRecord(
            live.snapshot.round,
            live.snapshot.now,
            text,
            live.policy.name,
            live_jct=None if live_prospect is None else live_prospect.jct,
            live_worst_rho=None if live_prospect is None else live_prospect.worst_rho,
        )
        try:
            seen = shadow_situation(live, policy, self._states.get(text))
            found = decide(seen, placed, policy)
            ahead = self._prospect(seen, budget)
        except Exception as error:  # a policy may be third-party code
            log.exception("shadow_failed", policy=text, round=record.round)
            self._states.pop(text, None)
            return replace(record, seconds=budget.used - begun, error=f"{type(error).__name__}: {error}")
        self._states[text] = found.state
        slow = (
            f"its simulation takes more than {MOST_CPU_SECONDS:.0f} s: no completion times" if ahead is None else None
        )
        return replace(
            record,
            gpus=found.gpus,
            would_run=found.would_run,
            would_not_run=found.would_not_run,
            jct=None if ahead is None else ahead.jct,
            worst_rho=None if ahead is None else ahead.worst_rho,
            seconds=budget.used - begun,
            error=slow,
        )

    @staticmethod
    def _prospect(situation: Situation, budget: Budget) -> Prospect | None:
        """Return where a policy leads; None where that takes too long."""
        try:
            return prospect(situation, budget.proceed, HORIZON_SECONDS)
        except TooSlowError:
            return None


def work_of(task: Task) -> Callable[[Store, Budget], bytes]:
    """Return the work on a round; a policy that does not start is logged and left out."""
    registry = installed_policies()
    policies = {}
    for text in task.options["policies"]:
        try:
            policies[text] = parse_policy(text, registry)
        except PolicyTextError as error:
            log.error("shadow_left_out", policy=text, error=str(error))  # noqa: TRY400  the message says all
    return ShadowWork(policies, Settings(**task.options["settings"]), task.options["jobs"])


def problem_of(number: int, problem: str) -> bytes:
    """Return the result of a work that has failed as a whole."""
    return encode_shadows(ShadowResult(problem=f"round {number}: {problem}"))


if __name__ == "__main__":
    run_follower(work_of, problem_of)
