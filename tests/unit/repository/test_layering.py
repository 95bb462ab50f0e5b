import ast
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# What each room of metasched/ may import of the others, besides `errors`.
CONTRACT = {"model", "policy"}
ENGINE = CONTRACT | {"placement", "plan", "engine"}
EDGES = {"slurm", "mailbox", "reports", "status", "store"}
CYCLE = {"reconcile", "actuate", "publish"}
ROOMS = {
    "errors": set(),
    "model": set(),
    "policy": {"model", "problems"},
    "placement": {"model", "room"},
    "seats": set(),
    "sharing": {"model", "seats"},
    "plan": {"model", "sharing"},
    "limits": {"model", "placement"},
    "engine": ENGINE - {"engine"} | {"limits", "room"},
    "slurm": {"model"},
    "mailbox": set(),
    "reports": set(),
    "status": set(),
    "lock": set(),
    "store": CONTRACT | {"reports"},
    "standby": {"store"},
    "supervisor": set(),
    "backoff": set(),
    "problems": set(),
    "config": {"policy", "problems", "throughput"},
    "demand": set(),
    "trials": {"model"},
    "learning": {"model", "reports", "store", "throughput", "trials"},
    "quotas": {"model", "slurm"},
    "reservations": {"model", "slurm"},
    "hardware": {"model", "reservations", "seats", "slurm"},
    "reconcile": CONTRACT
    | EDGES
    | {"backoff", "config", "demand", "hardware", "learning", "quotas", "reservations", "seats", "supervisor"},
    "actuate": CONTRACT | EDGES | {"backoff", "config", "reconcile", "trials"},
    "publish": CONTRACT | EDGES | {"config", "reconcile"},
    "throughput": {"model"},
    "mechanism": {"model"},
    "room": {"model"},
    "chance": set(),
    "claims": {"mechanism", "model", "room"},
    "fractions": CONTRACT | {"claims", "mechanism", "chance", "room"},
    "simulator": ENGINE | {"throughput", "mechanism", "problems", "store"},
    "accounting": {"model", "simulator", "slurm", "store"},
    "codec": CONTRACT | {"throughput"},
    "replay": ENGINE | {"codec", "problems", "store"},
    "dry_run": {"slurm"},
    "beside": ENGINE,
    "controller": ENGINE | {"beside", "sharing"} | EDGES | CYCLE | {"codec", "config", "lock"},
    "daemon": ENGINE
    | EDGES
    | CYCLE
    | {"beside", "config", "lock", "standby", "supervisor", "dry_run", "controller", "installation"},
    "meanings": set(),
    "installation": {"config", "lock", "meanings", "slurm", "store"},
    "devcluster": set(),
    "demo": {"devcluster", "policy", "replay", "status", "store"},
    "cli": CONTRACT
    | EDGES
    | {
        "accounting",
        "config",
        "lock",
        "meanings",
        "problems",
        "installation",
        "daemon",
        "devcluster",
        "demo",
        "replay",
        "simulator",
        "standby",
    },
    "__main__": {"cli"},
}
OPEN = {"errors"}
FOR_POLICIES = {"model", "policy", "throughput", "mechanism", "claims", "fractions", "chance", "room"} | OPEN


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


def rooms(names: Iterator[str]) -> set[str]:
    """The rooms of metasched/ among imported names."""
    parts = (name.split(".") for name in names)
    return {name[1] for name in parts if name[0] == "metasched" and len(name) > 1}


def top_modules() -> list[Path]:
    """The modules and packages right below metasched/."""
    found = (ROOT / "metasched").iterdir()
    return sorted(p for p in found if p.suffix == ".py" or (p / "__init__.py").exists())


@pytest.mark.parametrize("module", [m for m in top_modules() if m.stem != "__init__"], ids=lambda m: m.stem)
def test_a_room_imports_only_what_lies_below_it(module):
    """A module of metasched/ has a row in the table, and imports no other rooms than its row allows."""
    assert module.stem in ROOMS, f"{module.name}: say in ROOMS what it may import"
    allowed = ROOMS[module.stem] | OPEN | {module.stem}
    wrong = {str(path.relative_to(ROOT)): rooms(imports(path)) - allowed for path in sources(module)}
    assert not {path: names for path, names in wrong.items() if names}


def test_the_table_has_no_cycle():
    """No room may import one that may import it, directly or through others."""
    graphlib.TopologicalSorter({room: below - {room} for room, below in ROOMS.items()}).prepare()


def test_policies_see_only_the_contract():
    """A policy imports of ours the contract and its mathematics, and no policy of another folder."""
    for folder in sorted(p for p in (ROOT / "policies").iterdir() if (p / "__init__.py").exists()):
        for path in sources(folder):
            names = list(imports(path))
            assert rooms(iter(names)) <= FOR_POLICIES, path
            siblings = {name.split(".")[1] for name in names if name.startswith("policies.")}
            assert siblings <= {folder.name}, path


def users_side() -> list[Path]:
    """What runs in the user's environment."""
    return [*sources(ROOT / "trainer_shim"), ROOT / "slurm_scripts" / "metasched-run"]


@pytest.mark.parametrize("path", users_side(), ids=lambda path: path.name)
def test_the_users_side_needs_torch_alone(path):
    """The shim imports the standard library, itself and torch; the wrapper the standard library."""
    allowed = sys.stdlib_module_names | ({"torch", "trainer_shim"} if path.suffix else set())
    assert {name.split(".")[0] for name in imports(path)} <= allowed


@pytest.mark.parametrize("path", users_side(), ids=lambda path: path.name)
def test_the_users_side_parses_as_python_3_9(path):
    """The user's Python may be older than ours."""
    ast.parse(path.read_text(), feature_version=(3, 9))
