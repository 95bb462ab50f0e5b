"""Readers of published traces: ``read_X(path, ...) -> Workload``, one module for each format.

``simulator/workload_formats.py`` registers the formats. A reader reads the whole trace before anything runs. Jobs are
ordered by (arrival, uid), and uids are in the order of the lines. Anything that is missing, malformed, unknown or
impossible is refused with a ``TraceError``, which names file, line and column and says what to do about it.
``most_gpus``, where a reader takes it, is the most GPUs that one job can have on the cluster that the trace is meant
for; without it no job is refused for its width.
"""
