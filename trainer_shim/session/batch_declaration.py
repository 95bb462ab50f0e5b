"""What a script says of its batch before it trains: its consent to a batch that adapts, and a rule of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer_shim.adaptive_batch.adapt import find_rule
from trainer_shim.batch import trainable_sizes
from trainer_shim.errors import UsageError
from trainer_shim.session.batch_adaptation import BatchAdaptation
from trainer_shim.session.rule_adaptation import RuleAdaptation

if TYPE_CHECKING:
    from trainer_shim.adaptive_batch.adapt import BatchRule
    from trainer_shim.checkpointing.formats.script_checkpoints import Progress
    from trainer_shim.checkpointing.tracked_objects import TrackedObjects
    from trainer_shim.data.train_loader import TrainLoader
    from trainer_shim.process_groups.rank_group import RankGroup
    from trainer_shim.session.batch_adaptation import BatchConsent
    from trainer_shim.session.trainer_session import TrainerSession


class BatchDeclaration:
    """The batch of a training as its script declares it, and the `declare` line of the reports.

    Attributes:
        consent: the consent of `ctx.loader`, None where the batch may not adapt.
    """

    def __init__(self) -> None:
        self.consent: BatchConsent | None = None
        self._rule: BatchRule | None = None
        self._rule_values: dict[str, Any] = {}  # keys of the `declare` line
        self._regimes: int | None = None

    def set_rule(self, rule: BatchRule | str, regimes: int | None) -> None:
        """Take the script's rule, or its word that the batch is static.

        Args:
            rule: the rule or its name.
            regimes: the most spans with one batch, None where the script does not know.

        Raises:
            UsageError: there is a rule already, or no such rule, or `regimes` is less than 1.
        """
        if self._rule_values or self._rule is not None:
            raise UsageError("ctx.adapts(...) names one rule, once, before ctx.epochs(...)")
        if regimes is not None and regimes < 1:
            raise UsageError(f"ctx.adapts(..., regimes={regimes}): a training has at least one")
        self._rule = find_rule(rule)
        self._regimes = regimes
        if self._rule is None:
            self._rule_values = {"adapts": "static", "regimes": 1}

    def start_adaptation(
        self,
        session: TrainerSession,
        group: RankGroup,
        loader: TrainLoader,
        tracked: TrackedObjects,
        *,
        start: Progress,
        total: int,
    ) -> BatchAdaptation | None:
        """Return the adaptation of the batch, by the script's own rule or by the lease; None where it is fixed.

        Args:
            session: the session that reads the lease.
            group: the processes of the training.
            loader: the training loader.
            tracked: the tracked objects.
            start: the position from which the training resumes.
            total: the epochs of the training.

        Raises:
            UsageError: the script has a rule, and its data are a stream; or as the adaptation says.
        """
        lease = session.read_lease_batch()
        if self._rule is None:
            return BatchAdaptation.of_lease(
                lease, group=group, loader=loader, consent=self.consent, tracked=tracked, start=start, total=total
            )
        if loader.is_stream:
            raise UsageError("ctx.adapts(...): the batches of a stream do not adapt; leave it out")
        adaptation = RuleAdaptation(
            self._rule,
            group=group,
            loader=loader,
            consent=self.consent,
            tracked=tracked,
            start=start,
            total=total,
            lease=lease,
        )
        self._rule_values = adaptation.declared_values(self._regimes)
        return adaptation

    def check_steps_keep_batch(self, start: Progress) -> None:
        """Check that the batch of a training that counts steps stays as it is.

        Raises:
            UsageError: the batch is to adapt, or has adapted.
        """
        if start.adaptive is not None:
            asks, fix = "the checkpoint is of a training whose batch adapted", "use another checkpoint directory"
        elif self._rule is not None:
            asks, fix = "ctx.adapts(...) changes the batch", "leave ctx.adapts(...) out"
        elif self.consent is not None:
            asks, fix = (
                "ctx.loader(max_batch=..., lr_scale=...) lets the batch adapt",
                "leave max_batch and lr_scale out",
            )
        else:
            return
        raise UsageError(
            f"ctx.steps(total): {asks}, and a step at a larger batch counts for more than one step, so that the total "
            f"would say nothing about how long it trains; give the length in epochs, with ctx.epochs(...), or {fix}"
        )

    def declare_line(
        self, loader: TrainLoader, *, epochs: int | None, steps: int | None, adapts: bool
    ) -> dict[str, Any]:
        """Return the values of the `declare` line.

        Args:
            loader: the training loader.
            epochs: the epochs of the training, None where it counts steps.
            steps: the optimizer steps of the training, None where it counts epochs.
            adapts: whether the batch adapts.
        """
        return {
            **_declared_length(loader, epochs=epochs, steps=steps),
            "global_batch": loader.first_batch,
            **self._declared_sizes(loader),
            **self._declared_limits(adapts=adapts),
            **self._rule_values,
        }

    def _declared_sizes(self, loader: TrainLoader) -> dict[str, Any]:
        """Return the key that names the world sizes at which every rank has samples."""
        plan = loader.plan
        sizes = trainable_sizes(plan.global_batch, plan.multiple_of) if self.consent is None else []
        return {"sizes": sizes} if sizes else {}

    def _declared_limits(self, *, adapts: bool) -> dict[str, Any]:
        """Return the further keys of a script that consents to a batch that adapts."""
        if self.consent is None:
            return {}
        limits = self.consent.limits
        return {
            "first_batch": limits.first_batch,
            "max_batch": limits.max_batch,
            "max_per_gpu": limits.max_per_gpu,
            "min_per_gpu": 1,
            "adaptive": adapts and self._rule is None,
            "lr_scale": self.consent.scaling.name,
        }


def _declared_length(loader: TrainLoader, *, epochs: int | None, steps: int | None) -> dict[str, int | None]:
    """Return the length of the training as a `declare` line has it, None for what is not known."""
    each, samples = loader.steps_per_epoch, loader.samples_per_epoch
    if epochs is not None:
        return {"total_steps": _times(epochs, each), "total_samples": _times(epochs, samples)}
    assert steps is not None  # noqa: S101  a training counts epochs or steps
    if not each or samples is None:
        return {"total_steps": steps, "total_samples": None if loader.is_stream else steps * loader.first_batch}
    passes, rest = divmod(steps, each)
    return {"total_steps": steps, "total_samples": passes * samples + rest * loader.first_batch}


def _times(epochs: int, each: int | None) -> int | None:
    return None if each is None else epochs * each
