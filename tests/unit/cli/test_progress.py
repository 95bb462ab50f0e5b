import io
import sys

from metasched.cli.progress import progress_bar


class Terminal(io.StringIO):
    """Standard error that says that it is a terminal."""

    def isatty(self):
        return True


def test_no_bar_where_standard_error_is_no_terminal(monkeypatch):
    """Logs of scripts get no bar; a terminal does."""
    for stream, shows in ((io.StringIO(), False), (Terminal(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress_bar("Simulating") as progress:
            progress(1, 2)
        assert ("Simulating" in stream.getvalue()) == shows
