"""Kill trainers, and what is around them, many times: `python -m tests.kills --kills 200`."""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from metasched.devcluster import DevCluster, NodeGroup, Settings
from tests.fork_server import ForkServer
from tests.kills import local, on_slurm
from tests.kills.table import table
from tests.slurm.site import Site

JOB_SUBMIT = Path(__file__).parents[2] / "slurm_scripts" / "job_submit.lua"
CAMPAIGN = 25  # kills of one training
NODES = NodeGroup(2, 4, "v100")


def parse():
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--slurm", type=int, help="how many of them on a real Slurm cluster; a quarter by default")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def pieces(number):
    """So many kills, as campaigns."""
    return [min(CAMPAIGN, number - begin) for begin in range(0, number, CAMPAIGN)]


def shuffled_victims(number, dice):
    """Every victim about as often as any other."""
    victims = []
    while len(victims) < number:
        victims += dice.sample(on_slurm.VICTIMS, len(on_slurm.VICTIMS))
    return victims[:number]


def local_campaigns(number, base, seed):
    """(kills, what is wrong, facts) of each."""
    for index, kills in enumerate(pieces(number)):
        directory = base / f"local-{index}"
        directory.mkdir()
        with ForkServer() as server:
            yield local.campaign(server, directory, kills, seed + index)


def slurm_campaigns(number, base, seed):
    """The same, on one cluster."""
    if not number:
        return
    dice = random.Random(seed)  # noqa: S311  no secret
    with ExitStack() as stack:
        cluster_base = Path(tempfile.mkdtemp(prefix="msched-"))
        settings = Settings((NODES,), kill_wait=5)
        cluster = stack.enter_context(
            DevCluster.up(cluster_base, settings, job_submit=JOB_SUBMIT, owner_pid=os.getpid())
        )
        for index, kills in enumerate(pieces(number)):
            directory = base / f"slurm-{index}"
            directory.mkdir()
            site = Site(cluster)
            try:
                yield on_slurm.campaign(site, directory, shuffled_victims(kills, dice), seed + index)
            finally:
                site.close()


def main():
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through all that cleans up
    on_cluster = args.kills // 4 if args.slurm is None else args.slurm
    began, kills, wrong, facts = time.monotonic(), [], [], {}
    with tempfile.TemporaryDirectory(prefix="kills-") as base:
        for run, number in ((local_campaigns, args.kills - on_cluster), (slurm_campaigns, on_cluster)):
            for found, faults, counts in run(number, Path(base), args.seed):
                kills += found
                wrong += faults
                facts = {name: facts.get(name, 0) + count for name, count in counts.items()}
                print(f"{len(kills)} kills, {len(wrong)} faults, {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201
                print(*faults, sep="\n", end="", flush=True)  # noqa: T201
    print(table(kills))  # noqa: T201
    print(", ".join(f"{count} {name}" for name, count in facts.items()))  # noqa: T201
    return bool(wrong) or len(kills) < args.kills


if __name__ == "__main__":
    sys.exit(main())
