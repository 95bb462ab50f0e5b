"""Start, show or end a private Slurm cluster from a checkout: `python contrib/devcluster up|down|status [BASE]`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from metasched.devcluster.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
