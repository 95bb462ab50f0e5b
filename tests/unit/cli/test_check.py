"""What `metasched check` prints of its findings."""

from types import SimpleNamespace

from click.testing import CliRunner

from metasched.cli import check
from metasched.configuration import config
from metasched.installation import checks, facts
from metasched.installation.checks import Finding


def test_nodes_with_the_same_finding_share_a_line(capsys):
    """512 nodes without the wrapper are one finding to read, in the place of the first."""
    missing = [Finding("error", f"n{number}", "has no metasched-run on PATH", "put it there") for number in (1, 2, 4)]
    ready = Finding("ok", "n3", "has what jobs need", "")
    check._print(check._folded([missing[0], ready, *missing[1:]]))
    assert capsys.readouterr().out.splitlines() == [
        "ERROR   n[1-2,4]: has no metasched-run on PATH",
        "          mend: put it there",
        "ok      n3: has what jobs need",
    ]


def test_other_findings_keep_their_lines(monkeypatch):
    """Settings are not hosts: two with the same text do not share a line."""
    monkeypatch.setattr(config, "load", lambda *_: SimpleNamespace(slurm=SimpleNamespace(timeout_seconds=1.0)))
    monkeypatch.setattr(facts, "gather", lambda *_: None)
    alike = [Finding("error", subject, "is wrong", "") for subject in ("n1", "n2")]
    monkeypatch.setattr(checks, "check", lambda _: alike)
    monkeypatch.setattr(check, "_check_nodes", lambda _: alike)
    result = CliRunner().invoke(check.command, ["--nodes"])
    lines = ["ERROR   n1: is wrong", "ERROR   n2: is wrong", "ERROR   n[1-2]: is wrong"]
    assert (result.exit_code, result.output.splitlines()) == (1, lines)
