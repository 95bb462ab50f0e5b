"""Errors of sacct, which a fake one has."""

from datetime import datetime
from fnmatch import fnmatchcase

import pytest

from metasched.history_import import sacct_command
from metasched.history_import.sacct_command import AccountingError, array_tasks, ask_sacct
from tests.programs import write_program


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'Slurm accounting storage is disabled' >&2; exit 1",
            "sacct: Slurm accounting storage is disabled{advice}",
        ),
        ("exit 3", "sacct: exit status 3 without a message{advice}"),
        ("exec sleep 60", "sacct did not end within 0.5 s: ask for fewer days"),
        (None, "cannot start sacct: *; is Slurm installed here and on PATH?{advice}"),
    ],
)
def test_an_error_of_sacct_says_what_to_do(script, said, tmp_path, monkeypatch):
    """A failure, silence and a missing program are one kind of error, each with a way out where there is one."""
    if script is not None:
        write_program(tmp_path / "sacct", f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin" if script else str(tmp_path))
    monkeypatch.setattr(sacct_command, "_TIMEOUT_SECONDS", 0.5 if "sleep" in (script or "") else 60.0)
    with pytest.raises(AccountingError) as caught:
        array_tasks(["1"])
    assert fnmatchcase(str(caught.value), said.format(advice=""))
    with pytest.raises(AccountingError) as caught, ask_sacct(["JobID"], datetime(2025, 1, 1), None):  # noqa: DTZ001
        pass
    assert fnmatchcase(str(caught.value), said.format(advice=" (a file with sacct's output can be imported, too)"))
