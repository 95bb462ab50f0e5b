"""Reports for the daemon: the report file, step metrics, and profiling runs."""
