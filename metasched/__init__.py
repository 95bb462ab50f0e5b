"""A Slurm meta-scheduler for deep-learning training."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  where pip installs this package all the same, for the trainer shim
    raise ImportError(
        f"metasched needs Python 3.11 or later, and {sys.prefix} has {sys.version.split()[0]}: "
        "make the virtual environment with python3.11 -m venv"
    )
