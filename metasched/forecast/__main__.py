"""The process of forecasts: ``python -m metasched.forecast TASK``, which only the daemon starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from metasched.core.policy import installed_policies
from metasched.forecast.queue_forecast import Effort, forecast_queue
from metasched.forecast.result_file import ForecastResult, encode_result
from metasched.forecast.round_follower import MOST_CPU_SECONDS, Budget, Task, run_follower
from metasched.forecast.situation import read_situation
from metasched.simulator.records import Settings
from metasched.store import Store


def work_of(task: Task) -> Callable[[Store, Budget], bytes]:
    """Return the work on a round."""
    registry = installed_policies()
    effort = Effort(**task.options["effort"])
    settings = Settings(**task.options["settings"])

    def work(store: Store, budget: Budget) -> bytes:
        situation = read_situation(store, registry, settings, effort)
        found = forecast_queue(situation, effort, budget.proceed)
        number = situation.snapshot.round
        if found is None:
            problem = (
                f"policy {situation.policy.name}: the simulations of round {number} take more than "
                f"{MOST_CPU_SECONDS:.0f} s; give [forecast] jobs or horizon_seconds a lower value"
            )
            return encode_result(ForecastResult(number, problem=problem))
        return encode_result(ForecastResult(number, replace(found, seconds=budget.used)))

    return work


def problem_of(number: int, problem: str) -> bytes:
    """Return the result of a work that has failed."""
    return encode_result(ForecastResult(number, problem=problem))


if __name__ == "__main__":
    run_follower(work_of, problem_of)
