import re

import pytest

from metasched.shared_dir.published_status import ForecastStatus

PATHS = ["/", "/queue"]
JSON = ["/api/v1/cluster", "/api/v1/queue"]


@pytest.mark.parametrize("path", PATHS + JSON)
def test_the_page_answers_with_and_without_a_status(site, path):
    """Cluster and queue are shown before the daemon has published anything, and afterwards."""
    assert site.client().get(path).status_code == 200
    site.publish()
    assert site.client().get(path).status_code == 200


def test_the_cluster_page_names_jobs_and_drained_nodes(site):
    """Each node has its jobs and free GPUs, and the reason why it takes no jobs."""
    site.publish()
    page = site.client().get("/").text
    assert re.search(r'href="/job/u1"[^>]*>101<', page)
    assert "4 free" in page
    assert "fan broken" in page


def test_the_queue_page_names_jobs_and_their_reasons(site):
    """Each live job has a row with its id, name, state and the reason in words."""
    site.publish()
    page = site.client().get("/queue").text
    assert "bert" in page
    assert "needs 8 GPUs; 4 are free" in page


def test_the_queue_page_says_why_there_is_no_new_forecast(site):
    """Expected starts and ends grow old while the process that forecasts them fails."""
    site.publish()
    assert "No new forecast" not in site.client().get("/queue").text
    site.publish(forecast=ForecastStatus(problem="its process has ended (<signal> 9)"))
    page = site.client().get("/queue").text
    assert "No new forecast" in page
    assert "its process has ended (&lt;signal&gt; 9)" in page


@pytest.mark.parametrize("path", PATHS)
def test_a_fragment_has_no_frame(site, path):
    """A request of htmx is answered by the part of the page that changes."""
    site.publish()
    fragment = site.client().get(path, headers={"HX-Request": "true"}).text
    assert "<html" not in fragment
    assert "Policy" in fragment
