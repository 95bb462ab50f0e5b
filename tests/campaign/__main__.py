"""Random faults on a private Slurm cluster with real trainings: `python -m tests.campaign --seconds 180 --seed 1`.

The exit status is 1 where something happened that must not: a job FAILED that nobody had killed, a step trained twice
or never, a process left behind, something that needed an administrator's hand.
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from metasched.devcluster import DevCluster, NodeGroup, Settings
from tests.campaign import faults
from tests.campaign.campaign import Campaign
from tests.slurm.site import Site

JOB_SUBMIT = Path(__file__).parents[2] / "slurm_scripts" / "job_submit.lua"
NODES = NodeGroup(3, 2, "v100")


def parse():
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0, help="of faults; the trainings then end by themselves")
    parser.add_argument("--seed", type=int, default=1, help="decides the faults and the trainings")
    parser.add_argument("--plain", action="store_true", help="Slurm alone: plain jobs, requeued, without metasched")
    parser.add_argument("--list", action="store_true", help="print the faults of the seed, and do nothing")
    parser.add_argument("--events", type=Path, help="a file for all events and the logs of daemon and slurmctld")
    return parser.parse_args()


def main():
    args = parse()
    if args.list:
        for fault in faults.draw_faults(args.seed, args.seconds):
            print(f"{fault.at:8.2f}  {fault.kind} {fault.draw:.3f} for {fault.seconds:.1f} s")  # noqa: T201
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through all that cleans up
    base = Path(tempfile.mkdtemp(prefix="msched-"))
    lua = None if args.plain else JOB_SUBMIT
    with DevCluster.up(base, Settings((NODES,), kill_wait=5), job_submit=lua, owner_pid=os.getpid()) as cluster:
        site = Site(cluster)
        campaign = Campaign(site, args.seed, args.seconds, plain=args.plain)
        try:
            campaign.run()
        finally:
            if args.events:
                log = site.log() if (site.base / "daemon.log").exists() else ""
                lines = [f"{at:8.2f}  {text}" for at, text in campaign.events.lines]
                controller = (cluster.layout.log / "slurmctld.log").read_text(errors="replace")
                args.events.write_text("\n".join([*lines, "", log, "", controller]))
            site.close()
    print(campaign.table())  # noqa: T201
    if campaign.problems:
        print(campaign.red())  # noqa: T201
    print(campaign.line())  # noqa: T201
    return bool(campaign.problems) and not args.plain


if __name__ == "__main__":
    sys.exit(main())
