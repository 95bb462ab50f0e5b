"""A private, real Slurm cluster on one host, for demos, tests and development. Standard library only."""

from metasched.devcluster.cluster import DevCluster, Status
from metasched.devcluster.config import NodeGroup, Settings

__all__ = ["DevCluster", "NodeGroup", "Settings", "Status"]
