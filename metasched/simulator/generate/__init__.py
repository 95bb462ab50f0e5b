"""Random workloads by the papers' descriptions of theirs: the same seed gives the same jobs."""
