"""What `metasched check` prints of its findings."""

from metasched.cli import check
from metasched.installation.checks import Finding


def test_nodes_with_the_same_finding_share_a_line(capsys):
    """512 nodes without the wrapper are one finding to read, in the place of the first."""
    missing = [Finding("error", f"n{number}", "has no metasched-run on PATH", "put it there") for number in (1, 2, 4)]
    ready = Finding("ok", "n3", "has what jobs need", "")
    check._print([missing[0], ready, *missing[1:]])
    assert capsys.readouterr().out.splitlines() == [
        "ERROR   n[1-2,4]: has no metasched-run on PATH",
        "          mend: put it there",
        "ok      n3: has what jobs need",
    ]
