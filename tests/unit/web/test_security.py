import json

import pytest
from msgspec.structs import replace as changed

from metasched.web import csrf
from metasched.web.site import local_path, version_of
from tests.unit.web.conftest import JOB, WAITING

EVERY_PATH = ["/", "/queue", "/api/v1/cluster", "/api/v1/queue", "/nothing", "/api/v1/nothing", "/static/0/site.css"]


@pytest.mark.parametrize("path", EVERY_PATH)
def test_every_answer_has_the_security_headers(site, path):
    """Pages, JSON and errors alike forbid foreign content, sniffing and frames, and are not kept for other users."""
    site.publish()
    headers = site.client().get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert "private" in headers["cache-control"]


def test_a_failure_has_the_security_headers_and_no_traceback(site, monkeypatch):
    """A defect of a page is answered by a short message inside the security headers."""

    def fail(*_):
        raise RuntimeError("secret detail")

    monkeypatch.setattr("metasched.web.pages.queue.find", fail)
    site.publish()
    answer = site.client().get("/queue")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_the_configuration_names_who_may_show_the_page_in_a_frame(site):
    """Origins of the configuration may embed the page."""
    headers = site.client(frame_ancestors=("https://ood.example.org",)).get("/").headers
    assert "frame-ancestors https://ood.example.org" in headers["content-security-policy"]
    assert "x-frame-options" not in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("path", EVERY_PATH)
def test_other_methods_than_reading_ones_are_refused(site, method, path):
    """Nothing can be written: every other method is answered 405."""
    answer = site.client().request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/", "/queue", "/api/v1/queue"])
def test_head_is_answered_like_get(site, path):
    """HEAD has the status and type of GET."""
    site.publish()
    client = site.client()
    assert client.head(path).status_code == 200
    assert client.head(path).headers["content-type"] == client.get(path).headers["content-type"]


def test_nobody_sees_a_page_without_a_name(site):
    """A request without a believed user is answered 403, with none of the data, and logged."""
    site.publish()
    for path in ("/", "/queue", "/api/v1/cluster", "/api/v1/queue"):
        answer = site.client(user=None).get(path)
        assert answer.status_code == 403
        assert "bert" not in answer.text


def test_json_is_not_sent_again_while_nothing_changes(site):
    """The ETag of JSON changes with the publication alone."""
    site.publish()
    client = site.client()
    first = client.get("/api/v1/queue")
    again = client.get("/api/v1/queue", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert not again.content
    site.publish(jobs=(JOB,))
    assert client.get("/api/v1/queue", headers={"If-None-Match": first.headers["etag"]}).status_code == 200


def test_an_etag_of_one_viewer_is_not_anothers(site):
    """Two viewers who see different values have different ETags."""
    site.publish()
    tags = {site.client(user).get("/api/v1/queue").headers["etag"] for user in ("ann", "bob")}
    assert len(tags) == 2


def test_pages_are_compressed(site):
    """A page is sent compressed to a client that can read that."""
    site.publish()
    assert site.client().get("/", headers={"Accept-Encoding": "gzip"}).headers["content-encoding"] == "gzip"


def test_the_page_works_below_a_path(site):
    """Behind a proxy that shows the page at a path, every link and file has that path."""
    site.publish()
    client = site.client()
    client._transport.root_path = "/metasched"
    page = client.get("/metasched/").text
    links = [part.split('"')[0] for key in ('href="', 'src="', 'hx-get="') for part in page.split(key)[1:]]
    assert links
    assert all(link.startswith(("/metasched/", "#")) for link in links)


def test_a_static_file_is_kept_for_long(site):
    """The address of a static file has a hash of its content, so that browsers need not ask for it again."""
    page = site.client().get("/").text
    path = page.split('stylesheet" href="')[1].split('"')[0]
    answer = site.client(user=None).get(path)
    assert answer.status_code == 200
    assert "immutable" in answer.headers["cache-control"]


def test_the_version_of_static_files_follows_their_content(tmp_path):
    """Another content or name of a file is another version."""
    (tmp_path / "a").write_text("1")
    first = version_of(tmp_path)
    (tmp_path / "a").write_text("2")
    second = version_of(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({first, second, version_of(tmp_path)}) == 3


def test_loss_and_speed_are_for_owner_and_admins(site):
    """JSON has null for loss, speed and progress of another user's job."""
    site.publish()
    seen = {}
    for user in ("ann", "bob", "cho", "root"):
        jobs = site.client(user).get("/api/v1/queue").json()["jobs"]
        job = next(job for job in jobs if job["uid"] == "u1")
        seen[user] = job["loss"], job["steps_per_second"], job["progress_steps"]
    details = (0.125, 2.5, 500.0)
    nothing = (None, None, None)
    assert seen == {"ann": details, "root": details, "bob": nothing, "cho": nothing}


@pytest.mark.parametrize(
    ("user", "uids"), [("ann", {"u1"}), ("bob", {"u2"}), ("cho", {"u2"}), ("eve", set()), ("root", {"u1", "u2"})]
)
def test_private_data_hides_jobs(site, user, uids):
    """Under PrivateData a viewer sees own jobs, those of coordinated accounts, or all as an admin, on every page."""
    site.publish(jobs=(JOB, changed(WAITING, nodes={"n1": 2})), jobs_are_private=True)
    client = site.client(user)
    assert {job["uid"] for job in client.get("/api/v1/queue").json()["jobs"]} == uids
    cluster = client.get("/api/v1/cluster").json()
    assert {segment["uid"] for node in cluster["nodes"] for segment in node["segments"]} - {None} == uids
    for path in ("/", "/queue", "/api/v1/queue", "/api/v1/cluster"):
        text = client.get(path).text
        for job in (JOB, WAITING):
            if job.uid not in uids:
                assert job.name not in text
                assert f">{job.user}<" not in text
                assert json.dumps(job.slurm_job_id) not in text


def test_a_csrf_token_is_for_one_user_and_action_and_half_a_day():
    """A token is worth nothing for another user or action, later, from the future, or changed."""
    token = csrf.token("ann", "what-if", now=1000.0)
    assert csrf.is_valid(token, "ann", "what-if", now=1000.0)
    assert not csrf.is_valid(token, "bob", "what-if", now=1000.0)
    assert not csrf.is_valid(token, "ann", "other", now=1000.0)
    assert not csrf.is_valid(token, "ann", "what-if", now=1000.0 + 13 * 3600)
    assert not csrf.is_valid(token, "ann", "what-if", now=900.0)
    for wrong in ("", "x", "1.2", "1.2.3", token + "0", "\u202e.1.2", "9" * 10_000):
        assert not csrf.is_valid(wrong, "ann", "what-if", now=1000.0)
    assert csrf.token("ann", "what-if", now=1000.0) != token


def test_the_local_path_has_no_root_path():
    """A page finds its own address whatever the proxy's path is."""

    class Asked:
        scope = {"path": "/m/queue", "root_path": "/m"}  # noqa: RUF012  a test's stand-in

    assert local_path(Asked()) == "/queue"
