"""The tuner of apps whose own driver, such as Optuna, chooses which trials grow and end."""

from __future__ import annotations

from typing import ClassVar

from metasched.apps.tuners.tuner import Search, Tuner, TunerAnswer
from metasched.core.reasons import Code, Reason


class Outside(Tuner):
    """Passes a driver's orders on, as far as they are about the app's own trials."""

    name: ClassVar[str] = "outside"

    def step(self, search: Search) -> TunerAnswer:
        """Cap and end the live trials that orders name; orders for strangers' jobs are ignored, and named."""
        live = {trial.uid for trial in search.trials}
        known = set(search.entrants)
        orders = [order for order in search.orders if order.uid in live]
        strangers = sorted({order.uid for order in search.orders if order.uid not in known})
        problem = (
            None if not strangers else Reason.of(Code.ORDER_FOR_STRANGER, job=strangers[0], more=len(strangers) - 1)
        )
        return TunerAnswer(
            caps={order.uid: order.max_gpus for order in orders if order.max_gpus is not None},
            ends={order.uid: Reason.of(Code.ENDED_BY_DRIVER, words=order.words) for order in orders if order.end},
            problem=problem,
        )
