"""The mathematics of time shares for oracles, from the paper's section 3.1: one variable a job, or pair, and GPU type.

Nothing here is grouped, scaled or rounded. Speeds are those of an instance; a job that cannot run has none.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

from metasched.time_shares.allocation_inputs import allocation_inputs
from tests.oracles.exact_simplex import Program
from tests.oracles.instances import fits

LEAST_GAIN = Fraction(105, 100)
UNKNOWN_SECONDS = 3600
UNCONSOLIDATED = " unconsolidated"
TIME = Fraction(1, 10**6)  # what rounding may cost a job, as a fraction of its time
# the policies prefer early jobs, by up to a thousandth, where their contributions are equal
RELATIVE = Fraction(1, 1000)


def gpu_type(worker_type):
    """The GPU type of a worker type."""
    return worker_type.removesuffix(UNCONSOLIDATED)


class Allocations:
    """All valid allocations of an instance.

    Attributes:
        jobs: jobs that can run.
        gpus: GPUs by type that no job holds for good.
        rate: steps per second by uid and GPU type on which a job can run.
        columns: the variables: uids that run together, and the worker type.
        gangs: uids of jobs that can also run unconsolidated; all have as many GPUs.
        slots: by GPU type, how many of them fit on whole nodes.
    """

    def __init__(self, instance, *, aware=True, placement=False):
        self.gpus = {group.gpu_type: group.count * group.gpus for group in instance.nodes}
        self.rate = {}
        for one in instance.jobs:
            known = {**instance.estimate, **dict(one.model.known)}
            found = {
                group.gpu_type: known[group.gpu_type]
                for group in instance.nodes
                if known[group.gpu_type] > 0 and fits(one, group) and (not one.accepts or group.gpu_type in one.accepts)
            }
            if found:
                self.rate[one.uid] = found if aware else dict.fromkeys(found, max(found.values()))
        self.jobs = [one for one in instance.jobs if one.uid in self.rate]
        self.job = {one.uid: one for one in self.jobs}
        self.columns = [((one.uid,), kind) for one in self.jobs for kind in self.rate[one.uid]]
        self.speeds = [{uid: self.rate[uid][kind]} for (uid,), kind in self.columns]
        self.slots, self.gangs = {}, set()
        if instance.sharing and aware:
            self._add_pairs()
        if placement:
            self._add_unconsolidated(instance.nodes)

    def _add_pairs(self):
        for one, other in combinations(self.jobs, 2):
            part = dict(one.model.part).get(other.model.name, 0), dict(other.model.part).get(one.model.name, 0)
            if one.gpus != other.gpus or sum(part) < LEAST_GAIN:
                continue
            for kind in self.rate[one.uid].keys() & self.rate[other.uid].keys():
                self.columns.append(((one.uid, other.uid), kind))
                rates = self.rate[one.uid][kind] * part[0], self.rate[other.uid][kind] * part[1]
                self.speeds.append(dict(zip((one.uid, other.uid), rates, strict=True)))

    def _add_unconsolidated(self, nodes):
        for group in nodes:
            for one in self.jobs:
                if one.gpus > 1 and group.count > 1 and group.gpu_type in self.rate[one.uid]:
                    self.columns.append(((one.uid,), group.gpu_type + UNCONSOLIDATED))
                    self.speeds.append({one.uid: self.rate[one.uid][group.gpu_type] * one.model.unconsolidated})
        self.gangs = {uids[0] for uids, kind in self.columns if kind.endswith(UNCONSOLIDATED)}
        for uid in self.gangs:
            self.slots = {group.gpu_type: group.count * (group.gpus // self.job[uid].gpus) for group in nodes}

    def program(self, further=0):
        """Valid allocations: no job has more than all of its time, no type gives more GPUs than it has."""
        made = Program(len(self.columns) + further)
        for one in self.jobs:
            made.at_most({k: 1 for k, (uids, _) in enumerate(self.columns) if one.uid in uids}, 1)
        for kind, gpus in self.gpus.items():
            on_type = {k: self.job[uids[0]].gpus for k, (uids, t) in enumerate(self.columns) if gpu_type(t) == kind}
            made.at_most(on_type, gpus)
            if kind in self.slots:
                consolidated = (
                    k for k in on_type if self.columns[k][0][0] in self.gangs and self.columns[k][1] == kind
                )
                made.at_most(dict.fromkeys(consolidated, 1), self.slots[kind])
        return made

    def throughput(self, uid, factor=1):
        """The job's throughput as a row over the variables, times a factor."""
        return {k: speeds[uid] * factor for k, speeds in enumerate(self.speeds) if uid in speeds}

    def total(self, factor):
        """The sum of throughputs times the factor of each job, as a row."""
        row = {}
        for uid, value in factor.items():
            for k, speed in self.throughput(uid, value).items():
                row[k] = row.get(k, 0) + speed
        return row

    def fastest(self, uid):
        """The speed alone on the fastest GPU type."""
        return max(self.rate[uid].values())

    def equal(self, uid):
        """The throughput with equal time on every GPU of the cluster (X equal, section 4.1)."""
        return sum(self.rate[uid].get(kind, 0) * gpus for kind, gpus in self.gpus.items()) / sum(self.gpus.values())

    def isolated_time(self, uid):
        """The time by GPU type with 1/n of the GPUs of every type, within all of the job's time."""
        part = {kind: Fraction(self.gpus[kind], len(self.jobs) * self.job[uid].gpus) for kind in self.rate[uid]}
        return {kind: value / max(1, sum(part.values())) for kind, value in part.items()}

    def isolated(self, uid):
        """The throughput in that time (X isolated)."""
        return sum(self.rate[uid][kind] * value for kind, value in self.isolated_time(uid).items())

    def left(self, uid):
        """Remaining steps; unknown ones are an hour on the fastest type."""
        one = self.job[uid]
        return self.fastest(uid) * UNKNOWN_SECONDS if one.steps is None else Fraction(one.steps - one.done)

    def max_min(self, factor):
        """The largest minimum of throughput times factor that a valid allocation has."""
        made = self.program(1)
        level = len(self.columns)
        for uid, value in factor.items():
            made.at_most({level: 1} | {k: -speed for k, speed in self.throughput(uid, value).items()}, 0)
        return made.maximise({level: 1})[0]

    def best(self, gain, floors=None):
        """The largest sum of throughput times gain, none below its floor; and the throughputs."""
        made = self.program()
        for uid, floor in (floors or {}).items():
            made.at_least(self.throughput(uid), floor)
        value, x = made.maximise(self.total(gain))
        return value, {uid: sum(v * x[k] for k, v in self.throughput(uid).items()) for uid in self.rate}


class Found:
    """The time shares that a policy gives, which must be valid; and the throughputs that they mean."""

    def __init__(self, allocations, policy, snapshot, memory=None):
        inputs = allocation_inputs(snapshot, placement=policy.placement)
        shares, self.memory = policy.time_shares(inputs, {} if memory is None else memory)
        self.allocations = allocations
        self.x = [Fraction(0)] * len(allocations.columns)
        self.shares = {(uids, kind): Fraction(v) for uids, row in shares.items() for kind, v in row.items() if v}
        self.throughput = dict.fromkeys(allocations.rate, Fraction(0))
        time = dict.fromkeys(allocations.rate, Fraction(0))
        used = dict.fromkeys(allocations.gpus, Fraction(0))
        slots = dict(allocations.slots)
        for (uids, kind), value in self.shares.items():
            known = {(*column[0], column[1]): k for k, column in enumerate(allocations.columns)}
            k = known.get((*uids, kind), known.get((*reversed(uids), kind)))
            assert k is not None, f"{uids} cannot run on {kind}"
            assert value > 0, f"the time share of {uids} on {kind} is negative"
            self.x[k] += value
            used[gpu_type(kind)] += value * allocations.job[uids[0]].gpus
            for uid, speed in allocations.speeds[k].items():
                self.throughput[uid] += value * speed
                time[uid] += value
            if kind in slots and uids[0] in allocations.gangs:
                slots[kind] -= value
        assert max(time.values(), default=0) <= 1 + TIME
        assert min(slots.values(), default=0) >= -TIME
        assert all(used[kind] <= gpus * (1 + TIME) for kind, gpus in allocations.gpus.items())

    def reaches(self, uid, throughput, relative=RELATIVE, time=TIME):
        """Whether the job has a throughput, up to rounding."""
        tolerance = max(relative * throughput, time * self.allocations.fastest(uid))
        return self.throughput[uid] >= throughput - tolerance

    def value(self, row):
        """The value of a row over the variables."""
        return sum(value * self.x[k] for k, value in row.items())

    def total(self, gain):
        """The sum of throughput times gain."""
        return sum(self.throughput[uid] * value for uid, value in gain.items())
