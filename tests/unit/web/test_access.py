from dataclasses import replace

import pytest
from starlette.requests import Request

from metasched.web.access import Access, UnknownViewerError, Viewer
from tests.unit.web.conftest import HEADER, JOB

OTHERS = Viewer("eve")
OWNER = Viewer("ann")
COORDINATOR = Viewer("cho", accounts=frozenset({"vision"}))
ADMIN = Viewer("root", is_admin=True)


@pytest.mark.parametrize(
    ("viewer", "sees_public", "sees_private", "sees_details"),
    [
        (OTHERS, True, False, False),
        (OWNER, True, True, True),
        (COORDINATOR, True, True, False),
        (ADMIN, True, True, True),
    ],
    ids=["others", "owner", "coordinator", "admin"],
)
def test_who_sees_a_job(viewer, sees_public, sees_private, sees_details):
    """PrivateData leaves a job to owner, coordinator and admins; its loss and speed are for owner and admins."""
    assert viewer.may_see(JOB) is sees_public
    assert replace(viewer, jobs_private=True).may_see(JOB) is sees_private
    assert viewer.may_see_details(JOB) is sees_details


def request_with(*values, header=HEADER):
    headers = [(header.lower().encode(), value.encode("latin-1")) for value in values]
    return Request({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers})


def test_the_proxy_names_the_viewer(site):
    """The user of the proxy's header is the viewer, with the accounts that the configuration lets that user see."""
    access = Access(site.settings)
    assert access.viewer(request_with("ann"), jobs_private=False) == Viewer("ann")
    assert access.viewer(request_with("cho"), jobs_private=True) == Viewer(
        "cho", accounts=frozenset({"text"}), jobs_private=True
    )
    assert access.viewer(request_with("root"), jobs_private=False).is_admin


@pytest.mark.parametrize(
    "values",
    [
        (),
        ("",),
        ("ann", "root"),
        ("ann, root",),
        ("ann root",),
        ("../root",),
        ("-x",),
        ("ann\x1b[0m",),
        ("a" * 300,),
        ("ä",),
    ],
)
def test_a_header_that_names_no_user_is_refused(site, values):
    """A missing, repeated or malformed header is nobody, and never the first of two users."""
    with pytest.raises(UnknownViewerError):
        Access(site.settings).viewer(request_with(*values), jobs_private=False)


def test_no_header_is_believed_over_tcp(site):
    """Over TCP the header is ignored: without a developer's viewer nobody is believed, with one it is that user."""
    over_tcp = replace(site.settings, trusts_header=False)
    with pytest.raises(UnknownViewerError, match="--viewer"):
        Access(over_tcp).viewer(request_with("root"), jobs_private=False)
    fixed = Access(replace(over_tcp, viewer="ann")).viewer(request_with("root"), jobs_private=False)
    assert fixed == Viewer("ann")


def test_members_of_an_admin_group_are_admins(site, monkeypatch):
    """Members of a Unix group of the configuration see everything; an unknown group has none."""
    monkeypatch.setattr("metasched.web.access._members", lambda group: frozenset({"ada"} if group == "ops" else ()))
    access = Access(replace(site.settings, admin_groups=("gone", "ops")))
    assert access.viewer(request_with("ada"), jobs_private=False).is_admin
    assert not access.viewer(request_with("ann"), jobs_private=False).is_admin


def test_an_unknown_group_has_no_members(site):
    """A group that does not exist makes nobody an admin."""
    access = Access(replace(site.settings, admin_groups=("no-such-group-here",)))
    assert not access.viewer(request_with("ann"), jobs_private=False).is_admin
