import dataclasses
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from metasched.configuration.config import Config, load
from metasched.configuration.field_docs import meaning
from metasched.core.policy import PolicyParameters, installed_policies
from metasched.daemon import process
from metasched.installation import facts, job_submit_lua
from metasched.installation.checks import check
from metasched.installation.facts import Directory, Facts, Slurm, gather, on_nodes, probe_directory
from metasched.installation.job_submit_lua import OtherSharedError
from metasched.installation.template import template
from metasched.slurm.associations import Associations
from metasched.slurm.client import SlurmNode, SlurmSettings
from metasched.slurm.errors import SlurmCommandError, SlurmUnavailableError
from policies.gavel.policies import GavelCostParameters
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.restarted_jobs import RestartedJobs

STATE, SHARED = Path("/var/lib/metasched"), Path("/shared/metasched")
VALUES = {
    "SlurmUser": "slurm(64030)",
    "SelectType": "select/cons_tres",
    "JobFileAppend": "1",
    "MinJobAge": "300 sec",
    "AccountingStorageType": "accounting_storage/slurmdbd",
}
PLUGIN = f'-- metasched\nlocal SHARED = "{SHARED}"\n'


def node(name="n1", gpus=None, partitions=("main",)):
    return SlurmNode(
        name=name,
        gpus={"v100": 4} if gpus is None else gpus,
        cpus=16,
        memory=1 << 36,
        accepts=True,
        features=frozenset(),
        partitions=frozenset(partitions),
    )


SETTINGS = SlurmSettings((22, 5, 8), "alps", frozenset({85}), ("lua",), as_of=100.0, values=VALUES)
SLURM = Slurm(
    settings=SETTINGS,
    nodes=(node("n1"), node("n2")),
    admin_level="Operator",
    qos=frozenset({"normal"}),
    ahead=0.2,
    plugin=PLUGIN,
    associations=Associations(()),
)
FACTS = Facts(
    config=Config.model_validate({"paths": {"state": STATE, "shared": SHARED}}),
    user="metasched",
    uid=990,
    state=Directory(STATE, None, "ext4", 1 << 40, locks=True),
    shared=Directory(SHARED, None, "nfs4", 1 << 40, locks=True),
    daemon=None,
    slurm=SLURM,
)


def with_slurm(**changes):
    return dataclasses.replace(FACTS, slurm=dataclasses.replace(SLURM, **changes))


def with_settings(**changes):
    return with_slurm(settings=dataclasses.replace(SETTINGS, **changes))


def with_values(**changes):
    return with_settings(values={**VALUES, **changes})


def with_config(section, **keys):
    data = {"paths": {"state": STATE, "shared": SHARED}, section: keys}
    return dataclasses.replace(FACTS, config=Config.model_validate(data))


def with_plugin(line, **intake):
    """Return facts with one more setting in job_submit.lua, and intake settings of the configuration."""
    return dataclasses.replace(
        with_config("intake", **intake), slurm=dataclasses.replace(SLURM, plugin=f"{PLUGIN}local {line}\n")
    )


def with_policy(parameters):
    """Return facts with parameters of a policy in the configuration."""
    policy = FACTS.config.policy.model_copy(update={"parameters": parameters})
    return dataclasses.replace(FACTS, config=FACTS.config.model_copy(update={"policy": policy}))


def with_shards(facts, count):
    """Return facts whose nodes have ``count`` shards of each GPU."""
    nodes = (dataclasses.replace(node(), shards_per_gpu=count),)
    return dataclasses.replace(facts, slurm=dataclasses.replace(facts.slurm, nodes=nodes))


def keys(config):
    """Return the configuration as a dictionary, without the policy's parameters."""
    return config.model_dump(exclude={"policy": {"parameters"}})


def loaded(path):
    return keys(load(path, installed_policies()))


def complaints(facts):
    return [finding for finding in check(facts) if finding.level != "ok"]


def test_a_sound_installation_has_no_faults():
    """Every part of the installation has a finding."""
    assert complaints(FACTS) == []
    assert {"[paths] state", "[paths] shared", "Slurm", "role", "nodes", "job_submit"} <= {
        finding.subject for finding in check(FACTS)
    }


@pytest.mark.parametrize(
    ("facts", "level", "subject", "text", "fix"),
    [
        (with_settings(version=(21, 8, 8)), "error", "Slurm", "21.08", "22.05"),
        (with_slurm(admin_level="None"), "error", "role", "metasched is neither", "adminlevel=Operator"),
        (with_slurm(admin_level=None), "error", "role", "metasched is neither", "adminlevel=Operator"),
        (with_values(SelectType="select/linear"), "error", "slurm.conf", "select/linear", "cons_tres"),
        (with_settings(requeue_exit_hold=frozenset()), "warning", "slurm.conf", "85", "RequeueExitHold=85"),
        (with_values(JobFileAppend="0"), "warning", "slurm.conf", "overwrites", "JobFileAppend=1"),
        (with_values(MinJobAge="2 sec"), "warning", "slurm.conf", "MinJobAge=2", "MinJobAge=300"),
        (with_slurm(plugin="-- ours\n"), "warning", "job_submit", "does not mention", "copy the functions"),
        (with_slurm(plugin="-- metasched\nlocal SHARED = nil"), "warning", "job_submit", "no SHARED", str(SHARED)),
        (with_slurm(plugin='-- metasched\nlocal SHARED = "/x"'), "error", "job_submit", "'/x'", "the same"),
        (with_plugin("SHARDS = 2"), "error", "job_submit", "SHARDS = 2", "gres.conf"),
        (with_shards(with_plugin("SHARDS = nil"), 2), "warning", "job_submit", "do not share", "SHARDS = 2"),
        (with_config("schedule", poll_seconds=70.1), "warning", "slurm.conf", "MinJobAge=300", "MinJobAge=351"),
        (
            with_policy(GavelCostParameters(types_in_turn=("v100", "v1000"), prices={"v10": 1.0})),
            *("warning", "[policy.parameters]", "v10, v1000", "name some of: v100"),
        ),
        (
            dataclasses.replace(FACTS, state=dataclasses.replace(FACTS.state, path=SHARED)),
            *("error", "[paths] state", "[paths] shared as well", "name another directory"),
        ),
        (
            dataclasses.replace(FACTS, state=dataclasses.replace(FACTS.state, readable_by_all=True)),
            *("error", "[paths] state", "every user may enter", f"chmod o-rwx,g-w {STATE}"),
        ),
        (
            dataclasses.replace(FACTS, shared=dataclasses.replace(FACTS.shared, missing=True)),
            *("warning", "[paths] shared", "does not exist yet", f"install -d -o metasched {SHARED}"),
        ),
        (
            dataclasses.replace(FACTS, shared=dataclasses.replace(FACTS.shared, open_to_all=True)),
            *("error", "[paths] shared", "every user may replace", f"chmod go-w {SHARED}"),
        ),
        (with_slurm(nodes=(node(gpus={"v100": 2, "k80": 2}),)), "warning", "nodes", "n1", "split the types"),
        (
            with_slurm(nodes=(node(), dataclasses.replace(node("n2"), accepts=False, reason="Duplicate jobid"))),
            "warning",
            "nodes",
            "n2: drained by Slurm (Duplicate jobid)",
            "scontrol update nodename=n2 state=resume",
        ),
        (with_slurm(leaked={"n1": 2}), "warning", "nodes", "counts as allocated: 2 of n1", "scontrol reconfigure"),
        (with_slurm(nodes=(node(gpus={}),)), "warning", "nodes", "no node has GPUs", "GresTypes=gpu"),
        (with_config("intake", partitions=["mian"]), "error", "[intake] partitions", "mian", "main"),
        (with_config("intake", qos=["nromal"]), "error", "[intake] qos", "nromal", "normal"),
        (with_slurm(ahead=-7.0), "warning", "clock", "7 s behind", "NTP"),
        (
            dataclasses.replace(with_config("schedule", round_seconds=59.0), restarts=(1.0, 20.0, 21.0)),
            *("warning", "[schedule] round_seconds", "takes 20 s (median of the last 3)", "round_seconds = 60"),
        ),
        (with_slurm(associations=None), "warning", "accounting", "does not show metasched", "adminlevel=Operator"),
    ],
)
def test_each_fault_is_named_with_its_fix(facts, level, subject, text, fix):
    """One fault gives one finding, whose fix says what to change."""
    (finding,) = complaints(facts)
    assert (finding.level, finding.subject) == (level, subject)
    assert text in finding.text
    assert fix in finding.fix


@pytest.mark.parametrize(
    ("line", "intake", "text"),
    [
        ('PARTITIONS = { "main" }', {"partitions": ["main"]}, None),
        ("PARTITIONS = {}", {"partitions": ["main"]}, "none; [intake] partitions of the configuration: main"),
        ('PARTITIONS = {"main"}', {}, "job_submit.lua: main; [intake] partitions of the configuration: none"),
        ('QOS = {"Normal"}', {"qos": ["normal"]}, None),
        ('QOS = {"normal", "b"}', {"qos": ["Normal"]}, "job_submit.lua: b, normal; [intake] qos"),
    ],
)
def test_plugin_and_configuration_must_name_the_same_jobs(line, intake, text):
    """The daemon would take in a job that the plugin did not stamp; names of QOS have no case in Slurm."""
    found = complaints(with_plugin(line, **intake))
    assert [finding.level for finding in found] == ([] if text is None else ["error"])
    assert all(text in finding.text for finding in found)


def test_the_plugins_shards_must_be_those_of_the_nodes():
    """The nodes' own number is no fault."""
    assert complaints(with_shards(with_plugin("SHARDS = 2"), 2)) == []


def test_each_node_is_checked_in_its_own_partitions(monkeypatch):
    """A node that does not answer does not affect the others."""
    asked = {}

    def run(argv, **_):
        asked[argv[1]] = argv
        if argv[1] == "--nodelist=n1":
            raise SlurmCommandError("srun: down")
        return "has no python3 on PATH\n", ""

    monkeypatch.setattr(facts, "run_command", run)
    found = dict(on_nodes((node("n1"), node("n2", partitions=("b", "a"))), SHARED))
    assert str(found["n1"]) == "srun: down"
    assert found["n2"] == ["has no python3 on PATH"]
    assert {"--partition=a,b", "--mem=32M"} < set(asked["--nodelist=n2"])


def test_nodes_are_not_checked_for_a_missing_directory(monkeypatch):
    """Only a shared directory that exists is checked on the nodes."""

    def run(argv, **_):
        begin = argv.index("/bin/sh")
        return subprocess.run(argv[begin:], capture_output=True, text=True, timeout=30, check=True).stdout, ""

    monkeypatch.setattr(facts, "run_command", run)
    missing = Path("/no/such/directory")
    ((_, asked),), ((_, spared),) = on_nodes([node()], missing), on_nodes([node()], None)
    assert [line for line in asked if line not in spared] == [f"does not see {missing}"]


def test_a_damaged_database_and_a_missing_client_are_errors(tmp_path, monkeypatch):
    """The daemon would not start with them; a database that does not exist yet is no fault."""
    paths = {"state": tmp_path, "shared": tmp_path / "shared"}
    config = Config.model_validate({"paths": paths, "slurm": {"client": "pyslurm"}})
    monkeypatch.setenv("PATH", str(tmp_path))

    def subjects():
        found = check(gather(config, FakeSlurm()))
        return {finding.subject for finding in found if finding.level == "error"} & {"database", "[slurm] client"}

    assert subjects() == {"[slurm] client"}
    (tmp_path / "metasched.db").write_bytes(b"no database" * 1000)
    assert subjects() == {"[slurm] client", "database"}


def test_the_restarts_of_all_users_jobs_are_read(tmp_path):
    """They are compared with the length of a round; a site without restarts has no such finding."""
    config = Config.model_validate({"paths": {"state": tmp_path, "shared": tmp_path / "shared"}})

    def rounds():
        return [one for one in check(gather(config, FakeSlurm())) if one.subject == "[schedule] round_seconds"]

    assert rounds() == []
    site = RestartedJobs(tmp_path / "metasched.db")
    with site.store.transaction():
        for user, cost in (("ann", 100.0), ("bob", 110.0), ("bob", 150.0)):
            site.job(user, cost=cost)
    site.store.close()
    (found,) = rounds()
    assert (found.level, found.fix) == ("ok", "")
    assert found.text.startswith("a restart takes 110 s (median of the last 3), and a round 360 s")


def test_a_daemon_of_another_shared_directory_does_not_start(tmp_path):
    """Jobs, and perhaps another daemon, use the directory of job_submit.lua; a link to it is the same directory."""
    (tmp_path / "job_submit.lua").write_text(f'local SHARED = "{tmp_path}/shared/"\n')
    (tmp_path / "link").symlink_to(tmp_path / "shared")
    slurm = FakeSlurm()
    values = {"SLURM_CONF": f"{tmp_path}/slurm.conf"}
    settings = dataclasses.replace(slurm.settings(), job_submit_plugins=("lua",), values=values)
    job_submit_lua.check_shared(job_submit_lua.read_plugin(settings), tmp_path / "link")
    slurm.settings = lambda: settings
    with pytest.raises(OtherSharedError, match="make them the same"):
        process._settings_of_slurm(FACTS.config, slurm)


def test_an_operator_needs_the_plugin():
    """An administrator does not need the plugin."""
    without = with_settings(job_submit_plugins=())
    assert [(finding.level, finding.subject) for finding in complaints(without)] == [
        ("error", "role"),
        ("warning", "job_submit"),
    ]
    boss = dataclasses.replace(without, slurm=dataclasses.replace(without.slurm, admin_level="Administrator"))
    assert [finding.subject for finding in complaints(boss)] == ["job_submit"]


def test_a_database_on_a_network_file_system_is_refused():
    """SQLite corrupts there."""
    facts = dataclasses.replace(FACTS, state=dataclasses.replace(FACTS.state, filesystem="lustre"))
    assert [(finding.level, finding.subject) for finding in complaints(facts)] == [("error", "[paths] state")]


def test_shared_storage_without_locks_is_refused():
    """Two daemons could run at once."""
    facts = dataclasses.replace(FACTS, shared=dataclasses.replace(FACTS.shared, locks=False))
    assert [(finding.level, finding.subject) for finding in complaints(facts)] == [("error", "[paths] shared")]


def test_a_local_shared_directory_is_a_warning():
    """On a cluster of one node it is no fault."""
    local = dataclasses.replace(FACTS, shared=dataclasses.replace(FACTS.shared, filesystem="xfs"))
    assert [finding.subject for finding in complaints(local)] == ["[paths] shared"]
    one = dataclasses.replace(local, slurm=dataclasses.replace(SLURM, nodes=(node(),)))
    assert complaints(one) == []


def test_the_paths_are_checked_without_slurm():
    """The checks that need no Slurm have findings."""
    silent = dataclasses.replace(FACTS, slurm=SlurmUnavailableError("connection refused"))
    assert [(finding.level, finding.subject) for finding in check(silent)][-1] == ("error", "Slurm")
    assert len(check(silent)) == 3


def test_slurm_user_and_root_need_no_role():
    """Slurm lets them do everything."""
    assert complaints(dataclasses.replace(with_slurm(admin_level=None), user="slurm")) == []
    assert complaints(dataclasses.replace(with_slurm(admin_level=None), uid=0)) == []


def test_a_missing_directory_is_probed_in_its_parent(tmp_path):
    """The probe does not make the directory."""
    found = probe_directory(tmp_path / "a" / "b")
    assert found.problem is None
    assert found.filesystem
    assert found.locks is True
    assert not found.open_to_all
    assert list(tmp_path.iterdir()) == []


def test_a_world_writable_directory_is_an_error(tmp_path):
    """Other users could replace the daemon's files."""
    tmp_path.chmod(0o1777)
    assert probe_directory(tmp_path).open_to_all
    assert not probe_directory(tmp_path / "missing").open_to_all


def test_a_directory_that_every_user_may_enter_is_noticed(tmp_path):
    """Other users could lock the database."""
    tmp_path.chmod(0o755)
    assert probe_directory(tmp_path).readable_by_all
    tmp_path.chmod(0o750)
    assert not probe_directory(tmp_path).readable_by_all


def test_a_file_in_place_of_a_directory_is_a_problem(tmp_path):
    """The daemon could not make its directory below it."""
    (tmp_path / "file").touch()
    assert "is not a directory" in probe_directory(tmp_path / "file" / "state").problem


def test_an_unreadable_directory_is_a_problem(tmp_path):
    """The example is a directory below one that is closed to this user."""
    assert "File name too long" in probe_directory(tmp_path / ("x" * 300) / "state").problem


def test_the_template_is_a_configuration_of_defaults(tmp_path):
    """The file can be used as written."""
    path = tmp_path / "metasched.toml"
    path.write_text(template(SETTINGS, SLURM.nodes, STATE, SHARED))
    assert loaded(path) == keys(FACTS.config)


def test_every_default_in_the_template_may_be_uncommented(tmp_path):
    """The template has every key of the configuration."""
    text = template(SETTINGS, SLURM.nodes, STATE, SHARED)
    path = tmp_path / "metasched.toml"
    path.write_text(re.sub("^#(?! )", "", text, flags=re.MULTILINE))
    assert loaded(path) == keys(FACTS.config)
    written = tomllib.loads(path.read_text())
    for name, section in FACTS.config:
        assert set(written[name]) == set(type(section).model_fields) - {"parameters"}


@pytest.mark.parametrize(("held", "written"), [({42}, {"exit_code": 42}), ({42, 200}, {"exit_code": 42}), ({200}, {})])
def test_the_template_has_the_exit_code_of_requeue_exit_hold(held, written):
    """A site with another code keeps it, if a trainer can exit with it."""
    other = dataclasses.replace(SETTINGS, requeue_exit_hold=frozenset(held))
    assert tomllib.loads(template(other, (), STATE, SHARED))["slurm"] == written


def test_every_key_of_a_new_configuration_is_explained():
    """The explanation is the docstring of the key's field, in one line, also of inherited fields."""
    sections = [field.annotation for field in Config.model_fields.values()]
    keys = {f"{section.__name__}.{key}": field for section in sections for key, field in section.model_fields.items()}
    assert len(keys) > 50
    assert [key for key, field in keys.items() if not meaning(field)] == []

    class Derived(PolicyParameters):
        first: int = 1
        """The first
        of two."""

    class More(Derived):
        second: int = 2

    assert {name: meaning(field) for name, field in More.model_fields.items()} == {
        "first": "The first of two.",
        "second": "",
    }


def test_shared_storage_without_access_control_lists_is_a_warning():
    """Owners would not see the losses of their own jobs."""
    facts = dataclasses.replace(FACTS, shared=dataclasses.replace(FACTS.shared, grants=False))
    (found,) = complaints(facts)
    assert (found.level, found.subject) == ("warning", "[paths] shared")
    assert "nfs4 at" in found.text
    assert "access control lists" in found.fix


def test_admins_that_the_host_does_not_know_are_a_warning():
    """They would see what everybody sees."""
    (found,) = complaints(dataclasses.replace(FACTS, unknown_admins=("jane",)))
    assert (found.level, found.subject) == ("warning", "[access]")
    assert "jane" in found.text


def test_lists_are_tried_where_the_shared_directory_is(tmp_path, monkeypatch):
    """A file system that refuses them is told from one that has them."""
    assert probe_directory(tmp_path).grants is not None
    monkeypatch.setattr("metasched.installation.facts.grant", _refuses)
    assert probe_directory(tmp_path).grants is False


def _refuses(*_):
    raise OSError
