"""Host lists, GRES, array expressions, job ids and node names."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.slurm import field_parsers, hostlist


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-4,7]", ["n1", "n2", "n3", "n4", "n7"]),
        ("gpu-[008-011]", ["gpu-008", "gpu-009", "gpu-010", "gpu-011"]),
        ("a[9-11]", ["a9", "a10", "a11"]),
        ("login,n[1-2],x3", ["login", "n1", "n2", "x3"]),
        ("r[1-2]c[1-2]", ["r1c1", "r1c2", "r2c1", "r2c2"]),
        ("r[1-2]-ib", ["r1-ib", "r2-ib"]),
    ],
)
def test_host_lists_are_expanded(text, names):
    """Names are in the list's order, with leading zeros."""
    assert hostlist.expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        *("n[1", "n1]", "n[[1]]", "n[2-1]", "n[a]", "n[]", "a,,b", "n[1-999999]", "n[1-400]m[1-400]"),
        f"{'n' * 40}[1-99999]",
        ",".join([f"{'n' * 250}[1-300]"] * 100),
    ],
)
def test_an_invalid_host_list_is_refused(text):
    """A list that would fill the memory is refused, too."""
    with pytest.raises(ValueError, match=r".+"):
        hostlist.expand(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n1"], "n1"),
        (["n3", "n1", "n2", "n7"], "n[1-3,7]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n8", "n9", "n10"], "n[8-9],n10"),
        (["b", "a", "b"], "b,a"),
    ],
)
def test_host_lists_are_compressed(names, text):
    """Successive numbers are folded; numbers of different width stay apart."""
    assert hostlist.compress(names) == text


@given(st.lists(st.from_regex(r"[a-z]{1,3}-?[0-9]{0,5}", fullmatch=True)))
def test_expanding_undoes_compressing(names):
    """No name is lost, changed or added."""
    assert sorted(hostlist.expand(hostlist.compress(names))) == sorted(set(names))


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("", {}),
        ("gpu:2", {"": 2}),
        ("gpu", {"": 1}),
        ("gpu:v100", {"v100": 1}),
        ("gpu:v100:2", {"v100": 2}),
        ("gres:gpu:v100:2", {"v100": 2}),
        ("gres:gpu=2", {"": 2}),
        ("gres/gpu:a100=4", {"a100": 4}),
        ("gres/gpu:3", {"": 3}),
        ("gpu:v100:2(IDX:0-1)", {"v100": 2}),
        ("gpu:v100:4(S:0-1),gpu:p100:2(S:0,1)", {"v100": 4, "p100": 2}),
        ("gpu:v100:0(IDX:N/A)", {"v100": 0}),
        ("gpu:2(IDX:0,2)", {"": 2}),
        ("gpu:(null):2(IDX:0-1)", {"": 2}),
        ("gpu:3g.20gb:2", {"3g.20gb": 2}),
        ("cpu=4,mem=1G,node=1,billing=4,gres/gpu=2", {"": 2}),
        ("gres/gpu=2,gres/gpu:v100=2", {"v100": 2}),
        ("gres:shard:4,gres:gpufoo:1,license/x=1", {}),
    ],
)
def test_gpu_requests_are_read(text, counts):
    """Every release's form is read; other resources do not count."""
    assert field_parsers.gpus(text) == counts


@pytest.mark.parametrize("text", ["gpu:", "gpu:v100:", "gpu:v100:x:2", "gres:gpu:v100:2:3", "gpu:-1"])
def test_an_unreadable_gpu_request_is_refused(text):
    """An unreadable request is an error, not a request for no GPU."""
    with pytest.raises(ValueError, match="is not a number of GPUs"):
        field_parsers.gpus(text)


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("3", [3]),
        ("1-5%2", [1, 2, 3, 4, 5]),
        ("1-9:4", [1, 5, 9]),
        ("1,3,7-9", [1, 3, 7, 8, 9]),
        ("0-4:2,9%1", [0, 2, 4, 9]),
    ],
)
def test_array_expressions_are_expanded(text, tasks):
    """The limit of concurrent tasks (``%2``) is no task."""
    assert field_parsers.array_tasks(text) == tasks


@pytest.mark.parametrize("text", ["", "a", "1-", "5-1", "1,...", "1-3:0", "1-99999999"])
def test_an_invalid_array_expression_is_refused(text):
    """An expression that was cut short would hide tasks."""
    with pytest.raises(ValueError, match="range of task numbers"):
        field_parsers.array_tasks(text)


@pytest.mark.parametrize(
    ("text", "good"),
    [("1", True), ("12_3", True), ("", False), ("1_", False), ("1\n", False), ("\N{ARABIC-INDIC DIGIT ONE}", False)],
)
def test_slurm_job_ids_are_recognised(text, good):
    """A job id is ASCII digits, and nothing around them."""
    assert field_parsers.is_slurm_job_id(text) is good


@pytest.mark.parametrize(
    ("text", "good"),
    [("n1", True), ("gpu-1.site", True), ("-n1", False), ("n1,n2", False), ("n 1", False), ("n[1]", False)],
)
def test_node_names_are_recognised(text, good):
    """The text is one node's name, and no option."""
    assert field_parsers.is_node_name(text) is good


@pytest.mark.timeout(60)
@pytest.mark.parametrize("read", [field_parsers.gpus, field_parsers.shards, field_parsers.gpu_indices])
@pytest.mark.parametrize("repeated", [",", "(", "(a,", "),", "gpu", "9a", "gpu:v100:2,", "shard(0/1,"])
def test_the_time_of_a_gres_text_grows_with_its_length(read, repeated):
    """A text of a megabyte is read or refused within the test's limit; a time that grew by the square took hours."""
    with suppress(ValueError):
        read("gres:gpu:" + repeated * (1_000_000 // len(repeated)))


def test_an_overlong_gpu_request_is_refused():
    with pytest.raises(ValueError, match="more than 1000 characters"):
        field_parsers.gpus("gpu:" + "v" * 2000)
    with pytest.raises(ValueError, match="more than 1000 characters"):
        field_parsers.shards("shard:" + "v" * 2000)


def test_an_overlong_item_that_is_no_gpu_is_skipped():
    """A resource that metasched does not read, such as a license, makes no job unreadable."""
    text = f"license/{'v' * 2000}=1,gres/gpu=2,gres/shard=3,gpus_of_{'v' * 2000}"
    assert (field_parsers.gpus(text), field_parsers.shards(text)) == ({"": 2}, {"": 3})
