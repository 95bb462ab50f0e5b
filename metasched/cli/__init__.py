"""The command line: everything that people do with metasched."""

from metasched.cli.app import main

__all__ = ["main"]
