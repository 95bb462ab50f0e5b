"""The child process that carries out writes with pyslurm: one line of JSON in, one line of JSON out.

pyslurm runs in a process of its own, because libslurm holds Python's global lock for as long as a controller does not
answer, and ends the process where it finds no configuration.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

Verb = Callable[[Any, Mapping[str, Any]], None]

# A job object here is only an id, and is not looked up: one write is one message to slurmctld.
VERBS: Mapping[str, Verb] = {
    "hold": lambda pyslurm, request: pyslurm.Job(request["job"]).hold(),
    "release": lambda pyslurm, request: pyslurm.Job(request["job"]).release(),
    "requeuehold": lambda pyslurm, request: pyslurm.Job(request["job"]).requeue(hold=True),
    "suspend": lambda pyslurm, request: pyslurm.Job(request["job"]).suspend(),
    "resume": lambda pyslurm, request: pyslurm.Job(request["job"]).unsuspend(),
    "update": lambda pyslurm, request: pyslurm.Job(request["job"]).modify(
        pyslurm.JobSubmitDescription(**request["fields"])
    ),
}


def main() -> None:
    """Print the versions of pyslurm and of the controller, then answer requests until standard input ends."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # libslurm may print to standard output, which carries the answers
        os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"
        pyslurm = importlib.import_module("pyslurm")  # optional, and slow where Slurm does not answer

        def answer(**values: Any) -> None:
            answers.write(json.dumps(values) + "\n")
            answers.flush()

        pyslurm.slurm_init(os.environ.get("SLURM_CONF"))
        answer(pyslurm=pyslurm.__version__, slurm=pyslurm.slurmctld.Config.load().version)
        for line in sys.stdin:
            request = json.loads(line)
            try:
                VERBS[request["verb"]](pyslurm, request)
            except pyslurm.RPCError as error:
                answer(complaint=str(error) or f"error {error.errno}")
            else:
                answer(complaint="")


if __name__ == "__main__":
    main()
