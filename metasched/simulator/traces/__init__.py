"""Readers of published traces: ``read_X(path, ...) -> Workload``, one module for each format.

``simulator/workload_formats.py`` registers the formats. A reader reads the whole trace before anything runs. Jobs are
ordered by (arrival, uid), and uids are in the order of the lines. A ``TraceError`` for
anything that is missing, malformed, unknown or impossible names the file, the line, the column and the remedy.
``most_gpus`` is the most GPUs that one job can have on the simulated cluster; None accepts jobs of any size.
"""
