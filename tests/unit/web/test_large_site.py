"""4,096 GPUs and 10,000 live jobs: what each page weighs, and that each query of the database uses an index."""

import gzip
import time

import pytest
from starlette.testclient import TestClient

from contrib.benchmarks.large_site import APP, USERS, Sizes, build, past_uid
from contrib.benchmarks.web import API, MOST_BYTES, MOST_ELEMENTS, MOST_ROWS, Elements, addresses
from metasched.store.connection import Connection
from metasched.web.application import create_application
from metasched.web.settings import WebSettings
from tests.query_plans import scanned

LARGE = Sizes(nodes=512, live=10_000, runs=3_000)


def client_of(base, user=USERS[0], **settings):
    made = WebSettings(base / "shared", base / "state" / "metasched.db", viewer=user, **settings)
    return TestClient(create_application(made), raise_server_exceptions=False)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A client of a large site."""
    base = tmp_path_factory.mktemp("large")
    build(base, LARGE, time.time())
    with client_of(base) as made:
        yield made


@pytest.fixture(scope="module")
def past(tmp_path_factory):
    """The directory of a site with some history."""
    base = tmp_path_factory.mktemp("past")
    build(base, Sizes(nodes=4, live=20, runs=60), time.time())
    return base


@pytest.mark.parametrize("address", [address for address in addresses() if not address.startswith(API)])
def test_the_first_load_of_a_page_is_small(large, address):
    """A browser without a cache fetches at most 100 KB, of at most 8,000 elements and 100 rows of a table."""
    answer = large.get(address)
    assert answer.status_code == 200
    page = Elements(answer.text)
    files = [large.get(file) for file in dict.fromkeys(page.files)]
    assert files
    assert sum(len(gzip.compress(one.content, 5)) for one in (answer, *files)) <= MOST_BYTES
    assert page.count <= MOST_ELEMENTS
    assert page.rows <= MOST_ROWS


@pytest.mark.parametrize("private", [False, True], ids=["PrivateData=none", "PrivateData=jobs"])
@pytest.mark.parametrize("user", [USERS[0], "cho", "nobody"])
def test_every_query_of_every_page_uses_an_index(past, monkeypatch, user, private):
    """No page or JSON path reads a whole table that grows with the history, whoever looks and whatever is asked."""
    from metasched.web.access import Access  # noqa: PLC0415  patched here

    whole, rows, statements = Access.viewer, Connection._rows, []
    monkeypatch.setattr(
        Access, "viewer", lambda self, request, *, jobs_private: whole(self, request, jobs_private=private)
    )

    def noted(self, sql, parameters=()):
        statements.append((self, sql, parameters))
        found = rows(self, sql, parameters)
        if not sql.startswith("PRAGMA"):
            plans.extend((sql, step) for step in scanned(self._db, [(sql, parameters)]))
        return found

    plans = []
    monkeypatch.setattr(Connection, "_rows", noted)
    with client_of(past, user, coordinators={"vision": ("cho",)}) as client:
        for address in [
            *addresses(),
            f"/job/{past_uid(3)}",
            "/replay?at=5",
            "/timeline?end=1000",
            f"/app/{APP}?page=2",
        ]:
            assert client.get(address).status_code in {200, 404}
    assert len(statements) > 50
    assert plans == []
