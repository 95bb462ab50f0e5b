"""`python -m metasched.devcluster up|down|status [BASE]`: a cluster of the default shape, without other packages.

`up` prints the shell's export lines of what a user of the cluster needs.
"""

import json
import os
import shlex
import sys
from pathlib import Path

from metasched.devcluster.cluster import DevCluster
from metasched.errors import MetaschedError

USAGE = "usage: up|down|status [BASE]   (BASE: .devcluster below the current directory)"


def main(argv: list[str]) -> int:
    """Do what the arguments say; 0, or 1 after an error, or 2 after a usage message."""
    match argv:
        case ["up" | "down" | "status" as verb, *rest] if len(rest) <= 1:
            base = Path(rest[0] if rest else ".devcluster")
        case _:
            sys.stderr.write(f"{USAGE}\n")
            return 2
    try:
        if verb == "up":
            for name, value in DevCluster.up(base).env.items():
                if value != os.environ.get(name):
                    sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
        elif verb == "down":
            DevCluster.attach(base).down()
        else:
            sys.stdout.write(json.dumps(DevCluster.attach(base).status(), indent=1) + "\n")
    except MetaschedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
