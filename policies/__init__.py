"""Scheduling policies; each subpackage is one system, found by entry point."""
