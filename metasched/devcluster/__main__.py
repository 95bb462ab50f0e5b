"""`python -m metasched.devcluster up|down|status [BASE]`: a cluster of the default shape, without other packages.

`up` prints lines that make a shell use the cluster. `fetch` only fetches Slurm, where there is none.
"""

import json
import sys
from pathlib import Path

from metasched.core.errors import MetaschedError
from metasched.devcluster import software
from metasched.devcluster.cluster import DevCluster

USAGE = "usage: up|down|status [BASE]   (BASE: .devcluster below the current directory)\n       fetch"


def main(argv: list[str]) -> int:
    """Carry out the command line, and return the exit code: 0, 1 after an error, 2 after a usage message."""
    try:
        match argv:
            case ["up", *rest] if len(rest) <= 1:
                sys.stdout.writelines(f"{line}\n" for line in DevCluster.up(_base(rest)).shell_lines)
            case ["down", *rest] if len(rest) <= 1:
                DevCluster.attach(_base(rest)).down()
            case ["status", *rest] if len(rest) <= 1:
                sys.stdout.write(json.dumps(DevCluster.attach(_base(rest)).status(), indent=1) + "\n")
            case ["fetch"]:
                software.find()
            case _:
                sys.stderr.write(f"{USAGE}\n")
                return 2
    except MetaschedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _base(rest: list[str]) -> Path:
    return Path(rest[0] if rest else ".devcluster")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
