"""The command line of metasched, one module a command."""

from metasched.cli.app import main

__all__ = ["main"]
