"""The Python API: a running cluster and its history, simulations, and the live queue under other policies.

::

    from metasched.api import Cluster, compare, simulate, what_if

    cluster = Cluster.connect()
    cluster.jobs(states=["waiting"]).to_pandas()
    compare("scenario.toml", ["las", "themis"], loads=[0.5, 1.0])

Instants are unix seconds, durations seconds, sizes bytes; what is not known is None. Every error is a
``metasched.core.errors.MetaschedError`` whose message names the fix.
"""

from metasched.api.cluster import Cluster
from metasched.api.simulations import Simulation, compare, simulate
from metasched.api.table import MissingExtraError, Table
from metasched.api.what_if import WhatIf, what_if

__all__ = [
    "Cluster",
    "MissingExtraError",
    "Simulation",
    "Table",
    "WhatIf",
    "compare",
    "simulate",
    "what_if",
]
