"""The directory that the daemon shares with the compute nodes: leases, reports, published status, lock."""
