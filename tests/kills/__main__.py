"""Kill the ranks of one training many times, without Slurm: `python -m tests.kills --kills 200`.

`python -m tests.campaign` kills everything around the trainings as well, on a real Slurm.
"""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.fork_server import ForkServer
from tests.kills import local
from tests.kills.table import table

CAMPAIGN = 25  # kills of one training


def parse():
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def campaigns(number, base, seed):
    """(kills, what is wrong, facts) of each training."""
    for index, begin in enumerate(range(0, number, CAMPAIGN)):
        directory = base / f"training-{index}"
        directory.mkdir()
        with ForkServer() as server:
            yield local.campaign(server, directory, min(CAMPAIGN, number - begin), seed + index)


def main():
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through all that cleans up
    began, kills, wrong, facts = time.monotonic(), [], [], {}
    with tempfile.TemporaryDirectory(prefix="kills-") as base:
        for found, faults, counts in campaigns(args.kills, Path(base), args.seed):
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
