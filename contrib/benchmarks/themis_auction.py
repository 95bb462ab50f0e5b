"""The duration of Themis's auctions: of the agents' bids, and of the arbiter's round.

    python -m contrib.benchmarks.themis_auction [--clusters 64 256 4096 ...] [--rounds N] [--json]

Apps search hyper-parameters by successive halving, with 1 to 64 jobs of 1 to 8 GPUs. In each round, another part of the
GPUs is on offer, because their leases end; apps hold some of these, and retain others. Seconds are CPU time.
"""

from __future__ import annotations

import random
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from contrib.benchmarks import common
from policies.themis.agent import Agent
from policies.themis.arbiter import Arbiter, Candidate
from policies.themis.bids import Bid
from policies.themis.finish_time import AppJob, AppWork, ClampedSlowdown, LaterPhase, halving_phases
from policies.themis.offer import NOTHING, Bundle, Offer, OfferedNode

RACK_NODES = 16


class Kind(NamedTuple):
    """One kind of cluster, with its apps.

    Attributes:
        nodes: GPUs of a node, and the number of such nodes.
        racks: whether racks are known.
        apps: the live apps, from and to.
        fairness: f.
        most_arbiter_ms: the targets, median and 95th percentile; None where the whole round has one.
    """

    nodes: Sequence[tuple[int, int]]
    racks: bool
    apps: tuple[int, int]
    fairness: float = 0.8
    most_arbiter_ms: tuple[float, float] | None = (354.0, 1400.0)


KINDS = {
    "64": Kind(((2, 8), (4, 12)), racks=False, apps=(8, 60)),
    "256": Kind(((8, 24), (4, 9), (1, 28)), racks=True, apps=(20, 200)),
    "256-all": Kind(((8, 24), (4, 9), (1, 28)), racks=True, apps=(40, 60), fairness=0.001),
    "4096": Kind(((8, 512),), racks=True, apps=(1000, 1000), most_arbiter_ms=None),
}
"""The paper's testbed, its simulated cluster (footnote 6) in its proportions, a large one. In "all", all apps bid."""

MOST_AGENT_MS = (29.0, 334.0)
"""The targets of one agent: median and 95th percentile of the paper."""

MOST_SECONDS, MOST_MEGABYTES = 10.0, 1024.0
"""The targets of a round of the large cluster, the agents not counted, and of the process."""

SLOWDOWNS = ((1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.1, 1.3), (1.0, 1.1, 1.3, 1.6))


def random_app(rng: random.Random) -> AppWork:
    """An app of 2^k trials, of which the first phase may be partly done."""
    jobs, most = 2 ** rng.randint(0, 6), 2 ** rng.randint(0, 3)
    slowdown = ClampedSlowdown(rng.choice(SLOWDOWNS))
    least = most if rng.random() < 0.2 else 1  # noqa: PLR2004  as the page says
    first = [AppJob(rng.uniform(50, 500), rng.uniform(50, 150), most, least, slowdown) for _ in range(jobs)]
    phases = halving_phases(first, [LaterPhase(200.0 * 2**phase) for phase in range(jobs.bit_length() - 1)])
    left = sum(job.work for phase in phases for job in phase)
    return AppWork(phases, rng.uniform(0, 36_000), left * rng.uniform(1.0, 2.0), rng.uniform(4, 30), most * jobs)


class Measured(NamedTuple):
    """One round: seconds of each agent and of the arbiter, and how exact the winners and payments are."""

    agents: list[float]
    arbiter: float
    bidders: int
    exact: bool
    gap: float


def measure_round(kind: Kind, seed: int) -> Measured:
    """Hold one round of a random state."""
    rng = random.Random(seed)  # noqa: S311
    sizes = [gpus for gpus, count in kind.nodes for _ in range(count)]
    part = rng.uniform(0.05, 1.0)
    offered = [gpus if rng.random() < part else rng.randint(0, gpus // 2) for gpus in sizes]
    nodes = [
        OfferedNode(f"n{at}", "g", gpus, free, f"r{at // RACK_NODES}" if kind.racks else "")
        for at, (gpus, free) in enumerate(zip(sizes, offered, strict=True))
    ]
    offer, agents = Offer(tuple(nodes)), {}
    for at in range(rng.randint(*kind.apps)):
        node, name = rng.choice(nodes), f"app{at}"
        held = {node.name: node.gpus} if node.gpus and rng.random() < 0.2 else {}  # noqa: PLR2004  as the page says
        retained = Bundle("g", (rng.choice((1, 2)),)) if rng.random() < 0.2 else NOTHING  # noqa: PLR2004
        work = random_app(rng)
        agents[name] = Agent(name, work, {"g": sum(sizes)}, retained=retained, held=held)
    candidates = [
        Candidate(name, agent.present_rho(offer), agent.work.phases[0][0].least_gpus, bool(agent.retained.parts))
        for name, agent in agents.items()
    ]
    seconds: list[float] = []

    def ask(app: str, offered: Offer) -> Bid:
        begun = time.process_time()
        bid = agents[app].bid(offered)
        seconds.append(time.process_time() - begun)
        return bid

    begun = time.process_time()
    found = Arbiter(kind.fairness).hold_round(candidates, offer, ask, seed=seed)
    arbiter = time.process_time() - begun - sum(seconds)
    return Measured(seconds, arbiter, len(found.bidders), found.exact, found.gap)


def summary(rounds: Sequence[Measured]) -> dict[str, Any]:
    """Figures of several rounds: milliseconds, the part that is exact, and the widest gap."""
    agents = [seconds * 1e3 for one in rounds for seconds in one.agents]
    arbiter = [one.arbiter * 1e3 for one in rounds]
    return {
        "rounds": len(rounds),
        "bidders": statistics.median(one.bidders for one in rounds),
        "agent_ms": (statistics.median(agents), percentile(agents)),
        "arbiter_ms": (statistics.median(arbiter), percentile(arbiter)),
        "slowest_ms": max(arbiter),
        "exact": sum(one.exact for one in rounds) / len(rounds),
        "gap": max(one.gap for one in rounds),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def percentile(values: Sequence[float]) -> float:
    """The 95th percentile."""
    return sorted(values)[min(int(0.95 * len(values)), len(values) - 1)]


def missed(name: str, facts: dict[str, Any]) -> list[str]:
    """The targets that one cluster misses, in words."""
    limits = {"agents": (facts["agent_ms"], MOST_AGENT_MS)}
    if (most := KINDS[name].most_arbiter_ms) is not None:
        limits["arbiter"] = (facts["arbiter_ms"], most)
    words = [
        f"{name}: {who} {which} {found:.0f} ms, target {limit:.0f}"
        for who, (pair, target) in limits.items()
        for which, found, limit in zip(("median", "p95"), pair, target, strict=True)
        if found > limit
    ]
    if facts["slowest_ms"] > MOST_SECONDS * 1e3:
        words.append(f"{name}: a round of {facts['slowest_ms'] / 1e3:.1f} s, target {MOST_SECONDS:.0f}")
    if facts["megabytes"] > MOST_MEGABYTES:
        words.append(f"{name}: {facts['megabytes']:.0f} MB, target {MOST_MEGABYTES:.0f}")
    return words


def main(given: Sequence[str] | None = None) -> int:
    """Measure, and print the table; the exit status is 1 if a target is missed."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--clusters", nargs="+", choices=[*KINDS], default=[*KINDS], help="clusters (default all)")
    parser.add_argument("--rounds", type=common.positive, help="rounds of each (default 40; 3 of the large ones)")
    options = parser.parse_args(given)
    print("| cluster | rounds | bidders | agent ms: median, p95 | arbiter ms: median, p95, most | exact | gap | MB |")
    print("|---|---|---|---|---|---|---|---|")
    found = {}
    for name in options.clusters:
        rounds = options.rounds or (3 if KINDS[name].most_arbiter_ms is None else 40)
        facts = found[name] = summary([measure_round(KINDS[name], seed) for seed in range(rounds)])
        (agent, late_agent), (arbiter, late_arbiter) = facts["agent_ms"], facts["arbiter_ms"]
        print(
            f"| {name} | {rounds} | {facts['bidders']:.0f} | {agent:.1f}, {late_agent:.1f} "
            f"| {arbiter:.0f}, {late_arbiter:.0f}, {facts['slowest_ms']:.0f} "
            f"| {facts['exact']:.0%} | {facts['gap']:.1e} | {facts['megabytes']:.0f} |",
            flush=True,
        )
    words = [one for name, facts in found.items() for one in missed(name, facts)]
    print("\n".join(["", *(f"missed: {each}" for each in words)]))
    common.finish(found, as_json=options.json)
    return 1 if words else 0


if __name__ == "__main__":
    sys.exit(main())
