import json
import os
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from metasched.shared_dir.published_status import ALL_FILE_NAME, FILE_NAME, PRIVATE_DIRECTORY
from tests.unit.web.conftest import JOB, NODES, WAITING, make_status

PATHS = ["/", "/queue", "/api/v1/cluster", "/api/v1/queue"]
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7*7 }}{% raw %}",
    "a\u202egpj.exe",
    "\u2066\u2067x",
    "nul\x00\x1b[31m\r\nSet-Cookie: a=b",
    "x" * 65_536,
    "Ω≈ç√ 漢字 " * 200,
    "",
    " ",
    "'; DROP TABLE jobs; --",
]


def hostile_site(site, text):
    """A site whose every user-written text is the given one."""
    job = changed(JOB, name=text, reason=text, account=text, gpu_type=text)
    node = replace(NODES[1], reason=text, gpu_type=text)
    other = changed(WAITING, error=text or None, user=text)
    site.publish(jobs=(job, other), nodes=(NODES[0], node), slurm=text, store=text, degraded=text, cluster=text)
    return site.client()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_are_shown_harmlessly(site, path, text):
    """Markup is escaped, control and bidi characters are visible escapes, and long texts are cut."""
    answer = hostile_site(site, text).get(path)
    assert answer.status_code == 200
    if path.startswith("/api"):
        return
    assert "<script>alert" not in answer.text
    assert "<img" not in answer.text
    assert ">49<" not in answer.text
    assert not set(answer.text) & set("\u202e\u2066\u2067\x00\x1b")
    assert len(answer.text) < 60_000


queries = st.dictionaries(
    st.sampled_from(["q", "user", "account", "state", "sort", "page", "unknown"]) | st.text(max_size=5),
    st.text(max_size=40)
    | st.integers().map(str)
    | st.sampled_from(["-1", "0", "9" * 400, "1e9", "NaN", "١٢", "²", "--1"]),
    max_size=6,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=queries, path=st.sampled_from(PATHS))
def test_any_query_is_answered(site, query, path):
    """Unknown keys are ignored; values that cannot be shown become the nearest that can. Nothing fails."""
    if not (site.shared / FILE_NAME).exists():
        site.publish()
    client = site.__dict__.setdefault("kept", site.client())
    assert client.get(path, params=query).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/%00",
        "/..%2f..%2fetc/passwd",
        "/static/../../settings.py",
        "/%ff%fe",
        "/queue/",
        "/nothing/%0d%0aX",
    ],
)
def test_any_path_is_answered_without_a_traceback(site, path):
    """A strange address is answered 404, and never by a redirect, which would name the Host that the client sent."""
    answer = site.client().get(path, follow_redirects=False)
    assert answer.status_code == 404
    assert "Traceback" not in answer.text


def test_a_huge_page_number_is_the_last_page(site):
    """A page beyond the last one is the last one."""
    site.publish(jobs=tuple(changed(JOB, uid=f"u{i}", slurm_job_id=str(i)) for i in range(120)))
    data = site.client().get("/api/v1/queue?page=99999999999999999999").json()
    assert (data["page"], data["pages"], len(data["jobs"])) == (3, 3, 20)


def break_half(shared):
    whole = (shared / FILE_NAME).read_bytes()
    (shared / FILE_NAME).write_bytes(whole[: len(whole) // 2])


def break_jobs(shared):
    (shared / PRIVATE_DIRECTORY / ALL_FILE_NAME).write_bytes(b"\xff\xfe{")


def break_format(shared):
    data = json.loads((shared / FILE_NAME).read_text())
    (shared / FILE_NAME).write_text(json.dumps(data | {"format": 999}))


def break_missing(shared):
    (shared / FILE_NAME).unlink()


def break_nesting(shared):
    (shared / FILE_NAME).write_bytes(b"[" * 100_000)


@pytest.mark.parametrize("breaking", [break_half, break_jobs, break_format, break_missing, break_nesting])
@pytest.mark.parametrize("path", PATHS)
def test_a_broken_status_is_said_and_the_last_one_stays(site, breaking, path):
    """Half a file, another version's or none: the page shows the last status, and says that it is not the newest."""
    site.publish()
    client = site.client()
    before = client.get(path)
    breaking(site.shared)
    answer = client.get(path)
    assert answer.status_code == 200
    assert "cannot be read" in answer.text
    assert "101" in before.text
    assert "101" in answer.text
    assert str(site.shared) not in answer.text  # paths are for the log
    site.publish()
    assert "cannot be read" not in client.get(path).text


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("shift", "words"), [(-3600.0, "published nothing for 1 h"), (3600.0, "clock")])
def test_an_old_status_and_a_clock_set_back_are_said(site, path, shift, words):
    """A status that is old, or from the future, is shown with a warning."""
    site.publish(published=time.time() + shift)
    assert words in site.client().get(path).text


def test_the_status_is_parsed_once_for_a_publication(site, monkeypatch):
    """Many requests of one publication parse it once; the next publication is parsed again."""
    from metasched.web import published  # noqa: PLC0415  patched here

    site.publish()
    reads = []
    monkeypatch.setattr(published.published_status, "read", lambda shared: reads.append(shared) or make_status())
    client = site.client()
    for _ in range(5):
        client.get("/queue")
    assert len(reads) == 1
    os.utime(site.shared / FILE_NAME, ns=(1, 1))
    client.get("/queue")
    assert len(reads) == 2
