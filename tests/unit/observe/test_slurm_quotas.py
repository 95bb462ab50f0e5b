"""Slurm's associations: parsed, applied as shares and limits, and enforced by the daemon."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metasched.core import reason_words
from metasched.core.model import Placement
from metasched.observe.slurm_quotas import SlurmQuotas
from metasched.slurm.associations import Association, Associations, Qos, UsageLimits, parse
from metasched.slurm.client import JobState
from tests.builders import job
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite

# Cut from what 22.05 and 26.05 print: the first names no user in a QOS, and has Lft where the second has Lineage.
TRES = "cpu=N(2),mem=N(1000),node=N(1),billing=N(2)"
REST = "GrpTRESMins=gres/gpu=9(0) GrpTRESRunMins=cpu=N(0),gres/gpu=7(5)"
ROWS = f"""Current Association Manager state
Association Records
ClusterName=main Account=root UserName= Partition= Priority=0 ID=1 SharesRaw/Norm/Level/Factor=1/18446744073709551616.00/1/0.00 UsageRaw/Norm/Efctv=0.00/1.00/0.00 ParentAccount= Lft=1 DefAssoc=No GrpJobs=N(2) GrpTRES={TRES},gres/gpu=N(2) {REST} MaxJobs= MaxTRESPJ=
ClusterName=main Account=root UserName=root(0) Partition= Priority=0 ID=2 SharesRaw/Norm/Level/Factor=1/18446744073709551616.00/1/0.00 ParentAccount= DefAssoc=Yes GrpJobs=N(0) GrpTRES={TRES} {REST} MaxJobs= MaxTRESPJ=
ClusterName=main Account=speech UserName= Partition= Priority=0 ID=9 SharesRaw/Norm/Level/Factor=1/0.20/1/0.00 ParentAccount=root(1) Lineage=/speech/ DefAssoc=No GrpJobs=4(2) GrpTRES={TRES},gres/gpu=3(2),gres/gpu:v100=2(0),gres/gpumem=5(0) {REST} MaxJobs=3(2) MaxTRESPJ=gres/gpu=2 Comment=GrpJobs=1 Account=root
ClusterName=main Account=speech UserName=bob(2002) Partition= Priority=0 ID=11 SharesRaw/Norm/Level/Factor=2/0.20/1/0.00 ParentAccount= Lineage=/speech/0-bob/ DefAssoc=No GrpJobs=N(2) GrpTRES={TRES},gres/gpu=N(2) {REST} MaxJobs=3(2) MaxTRESPJ=gres/gpu=2
ClusterName=main Account=vision UserName= Partition= Priority=0 ID=8 SharesRaw/Norm/Level/Factor=3/0.60/1/0.00 ParentAccount=root(1) GrpJobs=N(0) GrpTRES={TRES} MaxJobs= MaxTRESPJ=
ClusterName=main Account=vision UserName=alice(2001) Partition= Priority=0 ID=10 SharesRaw/Norm/Level/Factor=1/0.60/1/0.00 ParentAccount= GrpJobs=N(0) GrpTRES={TRES} MaxJobs= MaxTRESPJ=
ClusterName=main Account=sub UserName= Partition= Priority=0 ID=12 SharesRaw/Norm/Level/Factor=1/0.60/1/0.00 ParentAccount=vision(8) GrpJobs=N(0) GrpTRES={TRES} MaxJobs= MaxTRESPJ=
ClusterName=main Account=sub UserName=bob(2002) Partition=main Priority=0 ID=13 SharesRaw/Norm/Level/Factor=2147483647/0.60/1/0.00 ParentAccount= GrpJobs=N(0) GrpTRES={TRES} MaxJobs= MaxTRESPJ=
QOS Records
"""  # noqa: E501  as Slurm prints it
QOS_22 = f"""QOS=normal(1) UsageRaw=0.000000 GrpJobs=N(2) GrpTRES={TRES},gres/gpu=8(2) {REST} MaxTRESPJ=gres/gpu=5 MaxTRESPN=gres/gpu=4 MinTRESPJ= PreemptMode=OFF Priority=0 Account Limits= speech={{MaxJobsPA=N(2) MaxTRESPA={TRES},gres/gpu=7(2)}} User Limits= 2002={{MaxJobsPU=9(2) MaxTRESPU={TRES},gres/gpu=6(2)}}
QOS=idle(2) UsageRaw=0.000000 GrpJobs=N(0) GrpTRES={TRES} MaxTRESPJ= Account Limits=No Accounts User Limits=No Users
"""  # noqa: E501
QOS_26 = QOS_22.replace(" 2002={", " bob(2002)={").replace("(2)}", "(2) MaxTRESRunMinsPU=gres/gpu=1(8589934590)}")
PARTITIONS = "PartitionName=main AllowQos=ALL QoS=idle Nodes=n[1-4]\nPartitionName=b AllowQos=ALL QoS=N/A\n"


@pytest.mark.parametrize("qos", [QOS_22, QOS_26], ids=["22.05", "26.05"])
def test_associations_and_qos_are_parsed(qos):
    """Shares, parents and limits are read among any words of others; other limits are left out."""
    found = parse(ROWS + qos, PARTITIONS)
    speech, bob = found.chain("speech", "bob", "main")[1], found.chain("speech", "bob", "main")[0]
    assert (speech.account, speech.parent, speech.shares, speech.max_jobs) == ("speech", "root", 1, None)
    assert speech.group == UsageLimits({"": 3, "v100": 2}, 4)
    assert (bob.user, bob.max_jobs, bob.per_job, bob.group) == ("bob", 3, UsageLimits({"": 2}), UsageLimits())
    assert [row.account for row in found.chain("sub", "bob", "main")] == ["sub", "sub", "vision", "root"]
    assert [row.account for row in found.chain("sub", "bob", "b")] == ["sub", "vision", "root"]
    assert found.qos["normal"] == Qos(
        UsageLimits({"": 8}), UsageLimits({"": 6}, 9), UsageLimits({"": 7}), UsageLimits({"": 5})
    )
    assert found.qos["idle"] == Qos()
    assert found.partition_qos == {"main": "idle"}
    assert found.shares == pytest.approx({"root": 1.0, "speech": 0.2, "vision": 0.6, "sub": 0.3})


def test_associations_without_the_root_account_are_unknown():
    """Slurm then lists the user's own associations only."""
    own = [line for line in ROWS.splitlines() if "Account=root" not in line or "Comment" in line]
    assert parse("\n".join(own)) is None
    assert parse("Current Association Manager state\n") is None


def test_an_account_with_fairshare_parent_is_no_level():
    """The accounts below it divide its parent's share."""
    rows = [("root", "", 1), ("a", "root", 1), ("b", "root", 3), ("p", "b", None), ("c", "p", 1), ("d", "b", 1)]
    found = Associations(tuple(Association(name, parent=parent, shares=shares) for name, parent, shares in rows))
    assert found.shares == pytest.approx({"root": 1, "a": 0.25, "b": 0.75, "p": 0.75, "c": 0.375, "d": 0.375})


ROOT = Association("root")
ACCOUNTS = (
    ROOT,
    Association("science", parent="root", shares=1, group=UsageLimits({"": 6, "v100": 4})),
    Association("science", "ann", max_jobs=2),
    Association("arts", parent="root", shares=3),
)


def seen(uid, *, user="ann", account="science", qos="", partition="main", gpus=2, runs=False, low=1):
    """A job of up to 8 GPUs, as scheduling and Slurm have it."""
    slurm = FakeSlurm()
    options = ["--hold", f"--gres=gpu:v100:{gpus}", f"--qos={qos}", f"--partition={partition}"]
    shown = slurm.job(slurm.add(*options, user=user, account=account))
    if runs:
        shown = replace(shown, state=JobState.RUNNING, allocated={"n1": gpus}, allocated_gpu_type="v100")
    place = Placement(("n1",), gpus, "v100") if runs else None
    return job(uid, gpus, low, 8, user=user, account=account, placement=place), shown


def limits(ours, others=(), *, limited=True, partition_qos=None, **qos):
    known = Associations(ACCOUNTS, qos, partition_qos or {})
    return {
        (limit.name, "".join(sorted(limit.members)), limit.left)
        for limit in SlurmQuotas(known, limited=limited).limits(ours, [shown for _, shown in others])
    }


GROUP = ("account science: GrpTRES gres/gpu=6", "account science: GrpTRES gres/gpu:v100=4")
MAX_JOBS = "account science, user ann: MaxJobs=2"


def test_quotas_are_net_of_other_jobs():
    """Running jobs of others count, by account and user; metasched's and those of other accounts do not."""
    ours = [seen("a", runs=True), seen("b"), seen("c", user="bob"), seen("d", account="arts")]
    others = [seen("x", user="bob", gpus=1, runs=True), seen("y", gpus=3), seen("z", account="arts", runs=True)]
    assert limits(ours, others) == {(GROUP[0], "abc", 5), (GROUP[1], "abc", 3)}
    assert limits(ours, [*others, seen("w", runs=True)]) == {
        (GROUP[0], "abc", 3),
        (GROUP[1], "abc", 1),
        (MAX_JOBS, "ab", 1),
    }
    assert limits(ours, others, limited=False) == set()


def test_limits_of_a_qos_replace_those_of_associations():
    """Associations still count its jobs. The QOS of the partition comes first."""
    wide = Qos(group=UsageLimits({"": 10}), per_user=UsageLimits(jobs=1))
    ours = [seen("a", qos="wide", runs=True), seen("b", qos="wide"), seen("c")]
    expected = {
        ("QOS wide: GrpTRES gres/gpu=10", "ab", 10),
        ("QOS wide: MaxJobsPerUser=1 for ann", "ab", 1),
        (GROUP[0], "c", 4),
        (GROUP[1], "abc", 4),
    }
    assert limits(ours, wide=wide) == expected
    first = Qos(group=UsageLimits({"": 12}), per_account=UsageLimits({"": 2}))
    found = limits(ours[:2], wide=wide, first=first, partition_qos={"main": "first"})
    assert found == {
        ("QOS first: GrpTRES gres/gpu=12", "ab", 12),
        ("QOS first: MaxTRESPerAccount gres/gpu=2 for science", "ab", 2),
        ("QOS wide: MaxJobsPerUser=1 for ann", "ab", 1),
        (GROUP[1], "ab", 4),
    }


def test_limits_per_job_cut_or_block_jobs():
    """A job keeps the GPUs that it holds; a limit on a single type is a quota of its own."""
    known = SlurmQuotas(Associations((*ACCOUNTS[:2], replace(ACCOUNTS[2], per_job=UsageLimits({"": 3})), ACCOUNTS[3])))
    cut, kept, blocked, other = (
        known.apply(*seen("a", gpus=4)),
        known.apply(*seen("a", gpus=4, runs=True)),
        known.apply(*seen("a", gpus=4, low=4)),
        known.apply(*seen("a", gpus=4, account="arts")),
    )
    assert (cut.gpus, cut.max_gpus, cut.blocked, cut.fair_share) == (3, 3, None, 0.25)
    assert (kept.gpus, kept.max_gpus) == (4, 4)
    words = reason_words.words(blocked.blocked)
    assert words == "it needs 4 GPUs, and the limit is account science, user ann: MaxTRESPerJob gres/gpu=3"
    assert (other.max_gpus, other.fair_share) == (8, 0.75)
    one = limits([seen("a", account="arts", qos="q")], q=Qos(per_job=UsageLimits({"v100": 3})))
    assert one == {("QOS q: MaxTRESPerJob gres/gpu:v100=3", "a", 3)}


def test_the_daemon_enforces_limits_and_reads_them_again(tmp_path):
    """A job waits for a limit, with its name, and runs once an admin has raised it; reads have their interval."""
    site = FakeSite(tmp_path)
    site.slurm.accounting = Associations((ROOT, Association("x", parent="root", group=UsageLimits({"": 4}))))
    first, second = (site.add("--gres=gpu:4", "-A", "x") for _ in range(2))
    site.run(30)
    assert [site.slurm.job(slurm_job_id).state for slurm_job_id in (first, second)] == [
        JobState.RUNNING,
        JobState.PENDING,
    ]
    job = site.controller.current_snapshot().jobs[1]
    assert job.fair_share == 1.0
    assert reason_words.words(site.controller.reason(job.uid)).endswith(
        "the limit account x: GrpTRES gres/gpu=4 leaves it 0 GPUs"
    )
    site.slurm.accounting = Associations((ROOT, Association("x", parent="root")))
    site.run_until(lambda: site.slurm.job(second).state is JobState.RUNNING, seconds=90)
    assert 2 <= sum(call == ("associations", "") for call in site.slurm.calls) <= 4
