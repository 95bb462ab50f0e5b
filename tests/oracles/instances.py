"""Small random instances for oracles: a few models of jobs, jobs and nodes; and the snapshots of them.

All numbers are fractions, so that the oracles calculate exactly. Speeds do not depend on the nodes of a placement,
except where a test says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

from metasched.core.model import Node, Placement, Preempt, Snapshot, Status
from tests.builders import job

TYPES = ("v100", "p100", "k80")
NOW = 1000.0


@dataclass(frozen=True)
class ModelSpeed:
    """The known speeds of all jobs of one model.

    Attributes:
        name: the model's name.
        known: steps per second by GPU type; a type that is left out is not known, 0 says that the model cannot run.
        part: by the co-runner's model, the fraction of its speed that a job retains; a model left out is not known.
        unconsolidated: the fraction of its speed that a job retains on more than one node.
    """

    name: str
    known: tuple[tuple[str, Fraction], ...]
    part: tuple[tuple[str, Fraction], ...] = ()
    unconsolidated: Fraction = Fraction(1)

    def steps_per_second(self, gpu_type, spread):
        """The speed alone."""
        found = dict(self.known).get(gpu_type)
        return None if found is None else float(found * (1 if len(spread) == 1 else self.unconsolidated))

    def steps_per_second_with(self, other, gpu_type, spread):
        """The speed on the same GPUs as another job."""
        part, alone = dict(self.part).get(other.name), self.steps_per_second(gpu_type, spread)
        return None if part is None or alone is None else float(part) * alone


@dataclass(frozen=True)
class Asked:
    """One job of an instance.

    Attributes:
        uid: the job's uid.
        model: its speeds.
        gpus: GPUs that it needs.
        accepts: GPU types that it accepts; empty for any.
        max_nodes: the most nodes that it accepts; None for no limit.
        weight: its weight.
        steps: its total steps; None where they are not known.
        account: its account.
        slo: seconds from its submission to its deadline; None without one.
        submitted: its submission, unix seconds.
        done: steps that it has done.
    """

    uid: str
    model: ModelSpeed
    gpus: int = 1
    accepts: tuple[str, ...] = ()
    max_nodes: int | None = None
    weight: Fraction = Fraction(1)
    steps: int | None = None
    account: str | None = None
    slo: int | None = None
    submitted: int = 0
    done: int = 0

    @property
    def job(self):
        """The job as a record of a snapshot."""
        steps = {} if self.steps is None else {"total_steps": float(self.steps), "progress_steps": float(self.done)}
        return job(
            self.uid,
            self.gpus,
            user=self.account or "ann",
            account=self.account,
            submitted=float(self.submitted),
            gpu_types=self.accepts,
            max_nodes=self.max_nodes,
            cpus_per_unit=0,
            weight=float(self.weight),
            slo_seconds=None if self.slo is None else float(self.slo),
            speed=self.model,
            **steps,
        )


@dataclass(frozen=True)
class Nodes:
    """Nodes of one GPU type; each of those that are ``held`` has a job that stays on all of its GPUs."""

    gpu_type: str
    count: int
    gpus: int
    held: int = 0


@dataclass(frozen=True)
class Instance:
    """Jobs by submission, and nodes.

    Attributes:
        jobs: the jobs.
        nodes: nodes of each GPU type.
        sharing: whether two jobs can have the same GPUs.
        estimate: speeds by GPU type that stand for those that are not known.
    """

    jobs: tuple[Asked, ...]
    nodes: tuple[Nodes, ...]
    sharing: bool = False
    estimate: dict[str, Fraction] = field(default_factory=dict)

    def snapshot(self, now=NOW):
        """The first round of this instance."""
        nodes, stay = [], []
        for group in self.nodes:
            for i in range(group.count + group.held):
                name = f"{group.gpu_type}-{i}"
                nodes.append(Node(name, group.gpu_type, group.gpus, 64, 1 << 40))
                if i >= group.count:
                    place = Placement((name,), group.gpus, group.gpu_type)
                    kept = job(f"stays-{name}", group.gpus, preempt=Preempt.NO, cpus_per_unit=0)
                    stay.append(kept.evolve(status=Status.RUNNING, placement=place, run=1, run_started=0.0))
        jobs = sorted([*stay, *(one.job for one in self.jobs)], key=lambda one: (one.submitted, one.uid))
        return Snapshot(now, 1, 60.0, tuple(nodes), tuple(jobs), sharing=self.sharing)


def fits(one, group):
    """Whether the nodes of one GPU type can hold a job, with equally many GPUs on each node."""
    most = min(one.gpus, group.count, one.max_nodes or one.gpus)
    return any(one.gpus % k == 0 and one.gpus // k <= group.gpus for k in range(1, most + 1))


# Sums of two are never close to 1.05, below which two jobs do not share GPUs.
PARTS = tuple(Fraction(percent, 100) for percent in (31, 42, 57, 66, 78, 93, 100))
WEIGHTS = (*(Fraction(1, 10**k) for k in range(7)), Fraction(1, 2), Fraction(1, 3), Fraction(3, 4))
SPEEDS = (1, 2, 3, 5, 7, 10, 40, 100, 333, *range(1, 200, 13))


def draw_models(rng, gpu_types, *, sharing):
    """One to four models; their speeds on some types may be 0."""
    names = [f"m{i}" for i in range(rng.randint(1, 4))]
    found = []
    for name in names:
        known = tuple((kind, Fraction(0 if rng.random() < 0.1 else rng.choice(SPEEDS))) for kind in gpu_types)
        parts = tuple((other, rng.choice(PARTS)) for other in names) if sharing else ()
        found.append(ModelSpeed(name, known, parts))
    return found


def draw_models_of_unknown_speed(rng, gpu_types):
    """Models that differ in what is known of them alone: every sensible estimate of the rest is the same speed."""
    speeds = {kind: Fraction(rng.randint(1, 50)) for kind in gpu_types}
    rows = [
        tuple((kind, speed) for kind, speed in speeds.items() if rng.random() < 0.5) for _ in range(rng.randint(1, 3))
    ]
    found = [ModelSpeed("m0", tuple(speeds.items()))]
    return [*found, *(ModelSpeed(f"m{i}", row) for i, row in enumerate(rows, 1))], speeds


def draw_instance(rng, *, sharing=False, unknown=True, most=6, gangs=True, gpus=(1, 2, 4)):
    """Up to six jobs on up to three GPU types: gangs, ties, weights, refused types, jobs that cannot run or that stay.

    Args:
        rng: the source of random numbers.
        sharing: whether two jobs can have the same GPUs.
        unknown: whether speeds may be unknown.
        most: the most jobs.
        gangs: whether jobs may need several GPUs.
        gpus: possible GPUs of one node.
    """
    gpu_types = TYPES[: rng.randint(1, 3)]
    nodes = tuple(Nodes(kind, rng.randint(1, 3), rng.choice(gpus), rng.choice((0, 0, 0, 1))) for kind in gpu_types)
    estimate = {}
    if unknown and rng.random() < 0.2:
        models, estimate = draw_models_of_unknown_speed(rng, gpu_types)
    else:
        models = draw_models(rng, gpu_types, sharing=sharing)
    weights = WEIGHTS if rng.random() < 0.5 else (Fraction(1),)
    apart = rng.choice((0, 100))
    jobs = []
    for i in range(rng.randint(2, most)):
        first = bool(estimate) and i == 0  # its speeds are the estimate of the others', so it must be able to run
        jobs.append(
            Asked(
                uid="abcdef"[i],
                model=models[0] if first else rng.choice(models),
                gpus=rng.choice((1, 1, 1, 2, 2, 3, 4, 8, 64)) if gangs and not first else 1,
                accepts=() if first else rng.choice(((), (), (), gpu_types[:1], gpu_types[-1:], gpu_types[:2])),
                max_nodes=rng.choice((None, None, None, 1, 2)),
                weight=rng.choice(weights),
                steps=rng.choice((None, 1000, 5000, 5000, 10**5, 10**8, rng.randint(1000, 10**6))),
                account=rng.choice(("x", "y", "z")),
                slo=rng.choice((None, rng.randint(1100, 20_000))),
                submitted=i * apart,
            )
        )
    return Instance(tuple(jobs), nodes, sharing, estimate)


def simpler(instance):
    """Instances that differ by one simplification: a job or a GPU type less, or one field at its default."""
    for k, one in enumerate(instance.jobs):
        others = instance.jobs[:k], instance.jobs[k + 1 :]
        if len(instance.jobs) > 1 and not (instance.estimate and k == 0):
            yield replace(instance, jobs=(*others[0], *others[1]))
        plain = {"weight": Fraction(1), "slo": None, "account": None, "accepts": (), "gpus": 1, "submitted": 0}
        plain |= {"steps": None, "done": 0, "model": instance.jobs[0].model, "max_nodes": None}
        for name, value in plain.items():
            if getattr(one, name) != value:
                yield replace(instance, jobs=(*others[0], replace(one, **{name: value}), *others[1]))
    for k, group in enumerate(instance.nodes):
        others = instance.nodes[:k], instance.nodes[k + 1 :]
        accepted = {kind for one in instance.jobs for kind in one.accepts}
        if len(instance.nodes) > 1 and not instance.estimate and group.gpu_type not in accepted:
            yield replace(instance, nodes=(*others[0], *others[1]))
        for name, value in (("count", 1), ("held", 0), ("gpus", 1)):
            if getattr(group, name) != value:
                yield replace(instance, nodes=(*others[0], replace(group, **{name: value}), *others[1]))
