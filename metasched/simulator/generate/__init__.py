"""Workloads made by chance from what the papers say of theirs: the same seed gives the same jobs."""
