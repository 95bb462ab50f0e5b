import re
from pathlib import Path

import pytest

from metasched.configuration.config import ConfigError, differences, load
from metasched.core.policy import Policy, PolicyParameters, Registry, installed_policies

DOCS = Path(__file__).parents[3] / "docs" / "admin" / "CONFIG.md"


class Knobs(PolicyParameters):
    speed: float = 1.0


class Toy(Policy):
    name = "toy"
    Parameters = Knobs

    def decide(self, snapshot, state):
        raise NotImplementedError


@pytest.fixture
def registry():
    made = Registry()
    made.register(Toy)
    return made


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "metasched.toml"
        path.write_text(text)
        return path

    return write


PATHS = '[paths]\nstate = "/var/lib/metasched"\nshared = "/shared/metasched"\n'


def problems(path, registry):
    with pytest.raises(ConfigError) as caught:
        load(path, registry)
    assert str(path) in str(caught.value)
    return caught.value.problems


def test_the_smallest_file_has_defaults_for_the_rest(write, registry):
    """Only the two directories and the policy are required."""
    config = load(write(PATHS + '[policy]\nname = "toy"\n'), registry)
    assert config.schedule.round_seconds > 0
    assert config.policy.parameters == Knobs(speed=1.0)


def test_parameters_are_those_of_the_chosen_policy(write, registry):
    """`[policy.parameters]` is checked against the policy's own model."""
    config = load(write(PATHS + '[policy]\nname = "toy"\n[policy.parameters]\nspeed = 3\n'), registry)
    assert config.policy.parameters == Knobs(speed=3.0)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('[schedule]\nround_second = 3\n[policy]\nname = "toy"\n', ["[schedule] round_second", "'round_seconds'"]),
        ('[shedule]\n[policy]\nname = "toy"\n', ["shedule", "'schedule'"]),
        ('[schedule]\nround_seconds = "soon"\n[policy]\nname = "toy"\n', ["[schedule] round_seconds", "'soon'"]),
        ('[schedule]\nround_seconds = -1\n[policy]\nname = "toy"\n', ["[schedule] round_seconds", "-1"]),
        ('[policy]\nname = "tow"\n', ["[policy] name", "'tow'", "'toy'"]),
        ("[policy]\nname = 3\n", ["[policy] name", "3"]),
        ("[policy]\nname = 'toy'\n[[intake.limits]]\nlive_jobs = 0\n", ["[intake.limits.0] live_jobs", "0"]),
        (
            "[policy]\nname = 'toy'\n[[intake.limits]]\nlive_job = 1\nlive_jobs = 1\n",
            ["[intake.limits.0] live_job:", "no such key; did you mean 'live_jobs'"],
        ),
        (
            '[policy]\nname = "toy"\n[[intake.limits]]\nusers = ["a"]\n',
            ["[intake.limits] 0", "limits nothing", "array_tasks"],
        ),
        ('[policy]\nname = "toy"\n[policy.parameters]\nspede = 1\n', ["[policy.parameters] spede", "'speed'"]),
        ('[policy]\nname = "toy"\n[policy.parameters]\nspeed = "x"\n', ["[policy.parameters] speed", "'x'"]),
        ('[schedule]\nround_seconds = "360"\n[policy]\nname = "toy"\n', ["[schedule] round_seconds", "'360'"]),
        ('[schedule]\npoll_seconds = true\n[policy]\nname = "toy"\n', ["[schedule] poll_seconds", "True"]),
        ('[history]\nsnapshots_bytes = "5"\n[policy]\nname = "toy"\n', ["[history] snapshots_bytes", "'5'"]),
        ('[sharing]\nenabled = "off"\n[policy]\nname = "toy"\n', ["[sharing] enabled", "'off'"]),
        ('[slurm]\nsettle_seconds = inf\n[policy]\nname = "toy"\n', ["[slurm] settle_seconds", "inf"]),
        ('[intake]\npartitions = "gpu"\n[policy]\nname = "toy"\n', ["[intake] partitions", "'gpu'"]),
        ('[slurm]\nsignal = "SIGKILL"\n[policy]\nname = "toy"\n', ["[slurm] signal", "SIGKILL"]),
    ],
)
def test_a_wrong_key_type_or_name_is_named_with_its_fix(write, registry, text, parts):
    """The message names the file, the section, the key, what was found and the nearest valid name."""
    (problem,) = problems(write(PATHS + text), registry)
    for part in parts:
        assert part in problem


def test_all_problems_are_in_one_message(write, registry):
    """An admin corrects the file once."""
    text = '[paths]\nstate = "relative"\nshared = "/s"\n[schedule]\npoll = 1\n[policy]\nname = "nothing"\n'
    found = "\n".join(problems(write(text), registry))
    assert "absolute" in found
    assert "poll" in found
    assert "nothing" in found


@pytest.mark.parametrize("text", ["[paths", "\x00", 'x = "', "x = " + "[" * 10_000, "x = " + "9" * 5000])
def test_a_file_that_is_not_toml_is_an_error(write, registry, text):
    """No traceback of the TOML reader reaches the admin."""
    (problem,) = problems(write(text), registry)
    assert "TOML" in problem


def test_a_missing_file_is_an_error(tmp_path, registry):
    """The message names the option for another file."""
    (problem,) = problems(tmp_path / "none.toml", registry)
    assert "--config" in problem


def test_missing_sections_are_named(write, registry):
    """The section `[paths]` has no default."""
    assert any("paths" in problem for problem in problems(write('[policy]\nname = "toy"\n'), registry))


def test_differences_name_what_a_reload_changes(write, registry):
    """Each key that changes with both values, and none of the others."""
    old = load(write(PATHS + '[policy]\nname = "toy"\n'), registry)
    new = load(write(PATHS + '[policy]\nname = "toy"\n[schedule]\nround_seconds = 5\n'), registry)
    assert differences(old, old) == []
    (change,) = differences(old, new)
    assert (change.section, change.key, change.new) == ("schedule", "round_seconds", 5)
    assert str(change).startswith("[schedule] round_seconds:")


@pytest.mark.parametrize("number", range(4))
def test_the_examples_of_the_documentation_are_valid(tmp_path, number):
    """Each TOML block of docs/admin/CONFIG.md loads, with the policies that are installed."""
    blocks = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    path = tmp_path / "metasched.toml"
    paths = "" if "[paths]" in blocks[number] else f'[paths]\nstate = "{tmp_path}"\nshared = "{tmp_path}"\n'
    path.write_text(paths + blocks[number])
    load(path, installed_policies())


def test_entities_have_the_weights_of_the_documentation(tmp_path):
    """The example of accounts is what the hierarchical policy reads."""
    (block,) = (
        block for block in re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL) if "hierarchical" in block
    )
    path = tmp_path / "metasched.toml"
    path.write_text(f'[paths]\nstate = "{tmp_path}"\nshared = "{tmp_path}"\n{block}')
    entities = load(path, installed_policies()).policy.parameters.entities
    assert {name: (entity.weight, entity.inside) for name, entity in entities.items()} == {
        "vision": (3, "fairness"),
        "speech": (1, "fifo"),
    }


def test_the_message_for_a_misplaced_key_names_its_section(write, registry):
    """A section with the very key comes before keys with similar names."""
    (problem,) = problems(write(f'state = "/x"\n{PATHS}[policy]\nname = "toy"\n'), registry)
    assert problem == "state: no such key; did you mean [paths] state?"


def test_an_unknown_policy_is_an_error_with_the_nearest_name(write):
    """In any case of letters, and with all names at most once."""
    known = installed_policies()
    assert problems(write(PATHS + '[policy]\nname = "LAS"\n'), known) == [
        "[policy] name: no policy is named 'LAS'; did you mean 'las'?"
    ]
    (problem,) = problems(write(PATHS + '[policy]\nname = "-"\n'), known)
    assert problem.count("gavel_las") == 1


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("las", 'promote_knob = "9"'),
        ("las", 'elastic = "no"'),
        ("fifo", "elastic = 0"),
        ("gavel_las", 'fill = "off"'),
        ("gavel_hierarchical", 'others = {weight = "3"}'),
        ("gavel_las", "placement = true\naware = false"),
    ],
)
def test_wrong_parameters_are_refused(write, name, line):
    """Wrong types are errors, and so are parameters without effect in combination."""
    assert problems(write(f'{PATHS}[policy]\nname = "{name}"\n[policy.parameters]\n{line}\n'), installed_policies())


def test_stored_parameters_can_be_read_again():
    """Of every policy, also the lists that JSON has in place of tuples."""
    known = installed_policies()
    for kind in map(known.get, known.names()):
        parameters = kind.Parameters()
        assert kind.Parameters.model_validate(parameters.model_dump(mode="json")) == parameters


def test_the_first_limit_that_covers_a_job_and_has_the_key_decides(write, registry):
    """Patterns of user, account and QOS must all match; a key that no table has keeps its default."""
    text = (
        '[policy]\nname = "toy"\n'
        '[[intake.limits]]\nusers = ["al*"]\nqos = ["Long"]\nnon_preemptible_gpus = 8\n'
        '[[intake.limits]]\naccounts = ["students"]\nnon_preemptible_gpus = 0\nlive_jobs = 5\n'
    )
    intake = load(write(PATHS + text), registry).intake
    assert intake.non_preemptible_gpus_of("alice", "students", "long") == 8
    assert intake.non_preemptible_gpus_of("alice", "students", "normal") == 0
    assert intake.non_preemptible_gpus_of("alice", "staff", "normal") is None
    assert intake.live_jobs_of("alice", "students", "long") == 5
    assert intake.live_jobs_of("bob", "staff", "") == 1000
    assert intake.array_tasks_of("bob", "students", "") is None
