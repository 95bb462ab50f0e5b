"""Reasons as data, and as words."""

from __future__ import annotations

import ast
import inspect
import json
from operator import ne
from pathlib import Path
from string import Formatter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.core.policy import installed_policies
from metasched.core.reason_words import WORDS, words
from metasched.core.reasons import MEASURING, Code, Reason, from_json, from_text, to_json, to_text, without_measures
from metasched.scheduling.engine import run_round
from metasched.scheduling.plan import Timeouts, plan
from metasched.shared_dir.job_reasons import reason_fields
from metasched.simulator.simulation import simulate
from tests.unit.strategies import FixedPolicy, grants_for, snapshots
from tests.unit.workloads import clusters, settings, workloads

ROOT = Path(__file__).parents[3]
SOURCES = [*(ROOT / "metasched").rglob("*.py"), *(ROOT / "policies").rglob("*.py")]
TABLES = {ROOT / "metasched/core/reasons.py", ROOT / "metasched/core/reason_words.py"}
# Besides the command line: the published status, logs and leases, and the lines of `daemon --dry-run`.
RENDERERS = {
    "metasched/daemon/app_status.py",
    "metasched/daemon/batch_status.py",
    "metasched/daemon/status_publisher.py",
    "metasched/daemon/actuator.py",
    "metasched/daemon/dry_run.py",
    "metasched/intake/job_intake.py",  # the AdminComment
    "metasched/shared_dir/job_reasons.py",
}
POLICIES = [installed_policies().get(name)() for name in installed_policies().names()]


def takes(code, names):
    """Whether the words of a code need exactly the facts of these names."""
    template = WORDS[code]
    if isinstance(template, str):
        return {field for _, field, _, _ in Formatter().parse(template) if field} == set(names)
    try:
        inspect.signature(template).bind(**dict.fromkeys(names))
    except TypeError:
        return False
    return True


def check(reason):
    """Check that a reason has words for exactly its facts, and survives the store."""
    for part in reason.parts:
        facts = dict(part.facts)
        assert takes(part.code, facts), part
        template = WORDS[part.code]
        assert words(part) == (template.format(**facts) if isinstance(template, str) else template(**facts)) != ""
        assert not part.also
    assert from_text(to_text(reason)) == reason
    assert isinstance(hash(reason), int)


def test_every_code_has_a_meaning_words_and_a_user():
    """No code of the table is unused."""
    assert WORDS.keys() == set(Code)
    assert all(code.meaning.endswith(".") for code in Code)
    used = {
        node.attr
        for path in SOURCES
        if path not in TABLES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Code"
    }
    assert Code.__members__.keys() - used == set()


def given_codes(node):
    """The codes that an expression names."""
    return {Code[one.attr] for one in ast.walk(node) if isinstance(one, ast.Attribute) and one.attr in Code.__members__}


def given_facts(call):
    """The names of the facts of a call that makes a reason; None where the call does not show all of them."""
    if isinstance(call.func, ast.Attribute):
        names = [keyword.arg for keyword in call.keywords]
        return None if None in names else names
    if len(call.args) == 1:
        return []
    facts = call.args[1]
    shown = isinstance(facts, ast.Tuple) and all(isinstance(pair, ast.Tuple) for pair in facts.elts)
    return [pair.elts[0].value for pair in facts.elts] if shown else None


@pytest.mark.parametrize("path", [p for p in SOURCES if p not in TABLES], ids=lambda p: str(p.relative_to(ROOT)))
def test_reasons_are_given_with_the_facts_that_their_words_need(path):
    """`Reason.of(Code.X, ...)` and `Reason(Code.X, ...)` name exactly the facts of the code."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Reason", "Reason.of") and node.args:
            names = given_facts(node)
            for code in given_codes(node.args[0]) if names is not None else ():
                assert takes(code, names), f"line {node.lineno}: {code} with {names}"


def test_only_the_edge_imports_reason_words():
    """The CLI, the web page, the published status, leases and logs are the edge."""
    importers = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "metasched.core.reason_words"
    }
    edge = ("metasched/cli/", "metasched/presentation/", "metasched/web/")
    assert {path for path in importers if not path.startswith(edge)} <= RENDERERS


@given(st.data())
def test_every_reason_of_a_round_and_its_plan_has_words(data):
    """For any policy: reasons of jobs, placements and actions."""
    shot = data.draw(snapshots(blocked=True, free=True))
    chosen = [*POLICIES, FixedPolicy(lambda view: data.draw(grants_for(view)))]
    result = run_round(shot, data.draw(st.sampled_from(chosen)), None)
    for reason in result.reasons.values():
        check(reason)
    for action in plan(shot, result.targets, Timeouts(5.0, 5.0)):
        check(action.reason)


@given(st.data())
def test_every_reason_of_a_simulation_has_words(data):
    """From its first round to its last."""
    found = set()

    def watch(_, result):
        found.update(result.reasons.values())

    policy = data.draw(st.sampled_from([one for one in POLICIES if one.name in ("fifo", "las", "slurm", "isolated")]))
    simulate(data.draw(workloads()), data.draw(clusters()), policy, data.draw(settings()), watch=watch)
    for reason in found:
        check(reason)


def test_further_reasons_have_no_further_reasons():
    """Their words come after those of the first reason, in their order."""
    both = Reason.text("b").and_also(Reason.text("c"))
    assert Reason.text("a").and_also(both).also == (Reason.text("b"), Reason.text("c"))
    assert words(Reason.text("a").and_also(both)) == "a; b; c"


def test_a_reason_is_json():
    """Code, facts and further reasons, by name."""
    reason = Reason.of(Code.WAITS_FOR_GPUS, gpus=2, gpu_types=("v100",), free=1).and_also(Reason.text("so"))
    assert json.loads(json.dumps(to_json(reason))) == {
        "code": "waits_for_gpus",
        "facts": {"gpus": 2, "gpu_types": ["v100"], "free": 1},
        "also": [{"code": "text", "facts": {"text": "so"}}],
    }
    assert from_json(to_json(reason)) == reason


def test_any_reason_is_published_with_the_types_of_its_facts():
    """Those of another package's policy may hold lists and dictionaries; 1, 1.0 and True are equal in Python."""
    for fact in (["1", "2"], {"by": 3}, True, 1.0, 1):
        (also,) = reason_fields(Reason("mine").and_also(Reason("other", (("said", fact),))))["reason_also"]
        assert json.dumps(also) == json.dumps({"code": "other", "facts": {"said": fact}})


@pytest.mark.parametrize(
    "stored", ["2nd of 5 in line", "", '{"code":', '{"code":7}', '{"code":""}', '{"code":"x","facts":[]}', "[]", "7"]
)
def test_a_stored_text_of_older_versions_is_a_reason(stored):
    """Any text that is not a stored reason becomes one of its text."""
    reason = from_text(stored)
    assert reason.code == Code.TEXT
    assert words(reason).replace(" ", "") == stored.replace(" ", "")


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Reason("auction_lost", (("text", "its bid was too low"),)), "its bid was too low"),
        (Reason("auction_lost", (("bid", 3), ("price", 4))), "auction_lost: bid 3, price 4"),
        (Reason("auction_lost"), "auction_lost"),
        (Reason.of(Code.QUEUE_POSITION, rank=3), "queue_position: rank 3"),
    ],
)
def test_unknown_codes_and_facts_have_words(reason, text):
    """A policy of another package has codes of its own; another version has other facts."""
    assert words(reason) == text


def test_words_of_actions():
    """Words of placements have GPUs, type and nodes."""
    facts = {"gpus": 3, "gpu_type": "v100", "nodes": ("n1", "n2"), "uneven": (2, 1)}
    assert words(Reason.of(Code.MOVES, **facts)) == "moves to 3 GPUs of type v100 on n1 (2), n2 (1)"
    alone = {**facts, "gpus": 0, "gpu_type": None, "uneven": ()}
    assert words(Reason.of(Code.STARTS, **alone, co_runner="7")) == "starts on n1, n2, on the same GPUs as job 7"
    assert words(Reason.of(Code.PREEMPTED_FOR, jobs=("1", "2", "3"), more=2)) == "preempted for 1, 2, 3 and 2 more"


def test_positions_are_exact_at_the_head_of_a_queue():
    """Behind it they have two digits, so that one job's end changes the reasons of few."""
    told = {position: words(Reason.of_position(Code.QUEUE_POSITION, position, 2996)) for position in (1, 99, 101, 2655)}
    assert told == {
        1: "1st of about 3000 in line",
        99: "99th of about 3000 in line",
        101: "about 100th in line",
        2655: "about 2700th in line",
    }
    assert words(Reason.of_position(Code.PRIORITY_POSITION, 22, 99)) == "22nd of 99 by priority"
    queue = range(1, 10_001)
    at_first = [Reason.of_position(Code.QUEUE_POSITION, position, 10_000) for position in queue]
    after = [Reason.of_position(Code.QUEUE_POSITION, position - 1, 9_999) for position in queue]
    assert sum(map(ne, at_first, after)) < 300


MEASURES = {"loss", "median", "optimistic", "reached", "steps", "rho", "bids", "speedup", "batch", "efficiency"}
"""Facts that tell a job's loss, progress, fairness, speed or batch."""


def facts_of(said):
    """The names of the facts in the words of a code."""
    if isinstance(said, str):
        return {name for _, name, _, _ in Formatter().parse(said) if name}
    return set(inspect.signature(said).parameters)


@pytest.mark.parametrize("code", [code for code, said in WORDS.items() if facts_of(said) & MEASURES])
def test_no_reason_tells_everybody_a_measure(code):
    """A code whose words tell a loss or the like has other words for people who may not see it, and no such fact."""
    names = facts_of(WORDS[code])
    reason = Reason.of(code, **dict.fromkeys(names, 0.7171)).and_also(Reason.of(Code.BACKFILLED))
    told = without_measures(reason)
    assert told.code == code
    assert not {name for name, value in told.facts if value is not None} & MEASURES
    assert code not in MEASURING or "0.7171" not in words(told)
    assert words(told).endswith("backfilled")
