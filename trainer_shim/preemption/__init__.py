"""Preemption: stop requests by signal and lease, and the process's exit after a stop."""
