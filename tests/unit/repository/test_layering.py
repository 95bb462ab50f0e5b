import ast
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# What each package of metasched/ may import of the others. Imports run downward: the table has no cycle.
PACKAGES = {
    "core": set(),
    "devcluster": {"core"},
    "throughput": {"core"},
    "capacity": {"core"},
    "apps": {"core"},
    "slurm": {"core"},
    "shared_dir": {"core"},
    "configuration": {"core", "metrics", "throughput"},
    "placement": {"core", "capacity"},
    "time_shares": {"core", "capacity"},
    "scheduling": {"apps", "core", "capacity", "placement"},
    "store": {"core", "shared_dir"},
    "presentation": {"core", "shared_dir", "slurm", "store"},
    "metrics": set(),
    "notify": {"core", "presentation", "store"},
    "replay": {"core", "scheduling", "store", "throughput"},
    "simulator": {"capacity", "core", "learning", "scheduling", "store", "throughput"},
    "forecast": {"core", "replay", "simulator", "store", "throughput"},
    "shadow": {"core", "forecast", "scheduling", "simulator", "store"},
    "history_import": {"core", "simulator", "slurm", "store"},
    "learning": {"core", "configuration", "shared_dir", "store", "throughput"},
    "installation": {"core", "configuration", "learning", "shared_dir", "slurm", "store"},
    "observe": {"apps", "core", "configuration", "scheduling", "slurm", "store"},
    "intake": {"apps", "configuration", "core", "observe", "shared_dir", "slurm", "store"},
    "daemon": {
        *("apps", "core", "configuration", "forecast", "installation", "intake", "learning", "metrics", "observe"),
        *("replay", "scheduling", "shadow", "shared_dir", "simulator", "slurm", "store"),
    },
    "web": {
        *("apps", "configuration", "core", "forecast", "presentation", "shared_dir", "simulator", "slurm", "store"),
    },
    "demo": {"core", "configuration", "devcluster", "replay", "shared_dir", "slurm", "store"},
    "api": {"configuration", "core", "daemon", "presentation", "shared_dir", "simulator", "store"},
    "cli": {
        *("api", "apps", "configuration", "core", "daemon", "demo", "devcluster", "history_import", "installation"),
        *("notify", "presentation", "replay", "shared_dir", "simulator", "slurm", "store", "web"),
    },
}
# The same for the folders of trainer_shim/, besides `errors`.
SHIM_FOLDERS = {
    "batch": set(),
    "preemption": set(),
    "environment": set(),
    "data": {"batch", "preemption"},
    "adaptive_batch": {"batch", "data", "preemption"},
    "process_groups": {"environment"},
    "reporting": {"environment", "process_groups"},
    "checkpointing": {"adaptive_batch", "environment", "process_groups", "reporting"},
    "trackers": set(),
    "session": {
        *(
            "adaptive_batch",
            "batch",
            "checkpointing",
            "data",
            "environment",
            "preemption",
            "process_groups",
            "reporting",
            "trackers",
        ),
    },
    "rehearse": {"checkpointing", "session"},
}
FOR_POLICIES = {"core", "capacity", "throughput", "time_shares"}


def sources(top: Path) -> list[Path]:
    """The Python files of a module or a package."""
    return sorted(top.rglob("*.py")) if top.is_dir() else [top]


def imports(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, wherever in the file it does so."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def packages(names: Iterator[str]) -> set[str]:
    """The packages of metasched/ among imported names."""
    parts = (name.split(".") for name in names)
    return {name[1] for name in parts if name[0] == "metasched" and len(name) > 1}


def test_every_package_has_a_row():
    """metasched/ holds the packages of the table, and no modules but __init__ and __main__."""
    found = [p for p in (ROOT / "metasched").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()]
    assert {p.name for p in found if p.is_file()} == {"__init__.py", "__main__.py"}
    assert {p.name for p in found if p.is_dir()} == PACKAGES.keys()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_lies_below_it(package):
    """The modules of a package import no other packages than its row allows."""
    allowed = PACKAGES[package] | {package}
    wrong = {str(p.relative_to(ROOT)): packages(imports(p)) - allowed for p in sources(ROOT / "metasched" / package)}
    assert not {path: names for path, names in wrong.items() if names}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_table_allows_no_more_than_is_used(package):
    """A row names no package that its package does not import."""
    used = set[str]().union(*(packages(imports(path)) for path in sources(ROOT / "metasched" / package)))
    assert PACKAGES[package] <= used


@pytest.mark.parametrize("folder", SHIM_FOLDERS)
def test_a_folder_of_the_shim_imports_only_what_lies_below_it(folder):
    """The modules of a folder of trainer_shim/ import no other folders than its row allows."""
    top = ROOT / "trainer_shim" / folder
    for path in sources(top if top.is_dir() else top.with_suffix(".py")):
        found = (name.split(".") for name in imports(path))
        used = {name[1] for name in found if name[0] == "trainer_shim" and len(name) > 1}
        assert used & SHIM_FOLDERS.keys() <= SHIM_FOLDERS[folder] | {folder}, path


def test_the_tables_have_no_cycle():
    """No package may import a package that imports it, directly or through others."""
    graphlib.TopologicalSorter(PACKAGES).prepare()
    graphlib.TopologicalSorter(SHIM_FOLDERS).prepare()


def test_the_product_imports_no_tests_and_no_reproductions():
    """Fakes and the published simulators' loops are for tests and benchmarks only."""
    for folder in ("metasched", "policies"):
        for path in sources(ROOT / folder):
            assert not {name.split(".")[0] for name in imports(path)} & {"tests", "contrib"}, path


def test_policies_see_only_the_contract():
    """A policy imports of metasched the contract and its mathematics, and no policy of another folder."""
    for folder in sorted(p for p in (ROOT / "policies").iterdir() if (p / "__init__.py").exists()):
        for path in sources(folder):
            names = list(imports(path))
            assert packages(iter(names)) <= FOR_POLICIES, path
            siblings = {name.split(".")[1] for name in names if name.startswith("policies.")}
            assert siblings <= {folder.name}, path


def users_side() -> list[Path]:
    """What runs in the user's environment."""
    return [*sources(ROOT / "trainer_shim"), ROOT / "slurm_scripts" / "metasched-run"]


@pytest.mark.parametrize("path", users_side(), ids=lambda path: path.name)
def test_the_users_side_needs_torch_alone(path):
    """The shim imports the standard library, itself and torch, and each tracker's module its library.

    The wrapper imports the standard library alone.
    """
    allowed = sys.stdlib_module_names | ({"torch", "trainer_shim"} if path.suffix else set())
    if path.parent.name == "trackers":
        allowed |= {path.stem.removesuffix("_run")} & {"mlflow", "wandb"}
    assert {name.split(".")[0] for name in imports(path)} <= allowed


@pytest.mark.parametrize("path", users_side(), ids=lambda path: path.name)
def test_the_users_side_parses_as_python_3_9(path):
    """The user's Python may be older than the daemon's."""
    ast.parse(path.read_text(), feature_version=(3, 9))
