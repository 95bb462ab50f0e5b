"""Metrics in the format of Prometheus: made by the daemon once a publication, for a file and an endpoint."""
