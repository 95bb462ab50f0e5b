"""Readers of published traces: ``read_X(path, ...) -> Workload``, one module for each format.

What they share: a trace is read whole before anything runs; jobs are ordered by (arrival, uid), and uids sort as the
lines do; anything that is missing, malformed, unknown or impossible is refused with a ``TraceError``, which names file,
line and column and says what to do about it. ``most_gpus``, where a reader takes it, is the most GPUs that one job can
have on the cluster that the trace is meant for; without it no job is refused for its width.
"""
