"""The pages of the past in a real Chromium: at two widths, light and dark, by keyboard, and without scripts."""

import threading
import time
from itertools import product

import pytest
import uvicorn
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from contrib.benchmarks.large_site import APP, SHOWCASE, USERS, Sizes, build, past_uid
from contrib.benchmarks.site_policies import COMPARISONS, STATE
from metasched.web.application import create_application
from metasched.web.settings import WebSettings
from tests.browser.browser import SCHEMES, WIDTHS, Browser

SIZES = Sizes(nodes=12, live=30, runs=600)
PAGES = {
    "job": f"job/{SHOWCASE}",
    "ended-job": f"job/{past_uid(9)}",
    "apps": "apps",
    "app": f"app/{APP}",
    "timeline": "timeline",
    "timeline-of-jobs": "timeline?by=jobs&span=1d",
    "fairness": "fairness",
    "fairness-of-jobs": "fairness?by=job",
    "replay": "replay",
    "policies": "policies?shadow=themis",
    "what-if": "policies/what-if",
    "crashed-what-if": "policies/what-if?number=1",
    "comparisons": "policies/comparisons",
}


@pytest.fixture(scope="module")
def top(tmp_path_factory):
    """The address of a page with a past, shown to the owner of the showcase job."""
    directory = tmp_path_factory.mktemp("past")
    database, shared = build(directory, SIZES, time.time())
    own = {"state": directory / STATE, "comparisons": directory / COMPARISONS}
    application = create_application(WebSettings(shared, database, viewer=USERS[0], admins=(USERS[0],), **own))
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(60)


@pytest.fixture(scope="module")
def window(top, tmp_path_factory):
    """A browser window on that page."""
    made = Browser(tmp_path_factory.mktemp("profile"), top)
    yield made
    made.close()


def wait_for(window, condition):
    WebDriverWait(window.driver, 60).until(condition)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_and_fits(window, name, tmp_path):
    """axe-core finds nothing, nothing is wider than the window, and no request or CSP report is out of place."""
    for width, scheme in product(WIDTHS, SCHEMES):
        window.open(PAGES[name], width=width, scheme=scheme)
        window.screenshot(tmp_path / f"{name}-{width}-{scheme}.png")
        assert window.violations() == []
        assert window.overflow() == 0
        assert window.problems() == []
        assert window.elements() <= 8000


def test_charts_of_a_job_can_be_read_with_the_pointer(window):
    """With scripts, uPlot draws loss, throughput and batch from JSON, without a CSP report."""
    window.open(PAGES["job"])
    wait_for(window, lambda driver: len(driver.find_elements(By.CSS_SELECTOR, ".u-over")) == 3)
    assert window.violations() == []
    assert window.problems() == []


@pytest.mark.parametrize(
    "name", ["job", "apps", "app", "timeline", "fairness", "replay", "policies", "what-if", "comparisons"]
)
def test_a_page_needs_no_scripts(window, name):
    """Without scripts, headings, charts and tables are there, and the slider of past rounds is hidden."""
    window.open(PAGES[name], scripts=False)
    assert window.driver.find_element(By.TAG_NAME, "h1").text
    assert not window.driver.find_elements(By.CSS_SELECTOR, ".u-over")
    if name == "job":
        assert len(window.driver.find_elements(By.CSS_SELECTOR, "path.line")) == 3
    for slider in window.driver.find_elements(By.CSS_SELECTOR, "[data-slider]"):
        assert not slider.is_displayed()
    assert window.problems() == []


def test_a_bar_of_the_timeline_is_reached_by_keyboard(window):
    """The bars are links in the order of the tabulator key, and Enter leads to the job."""
    window.open(PAGES["timeline"])
    for _ in range(60):
        window.press(Keys.TAB)
        if "lanes" in window.driver.execute_script(
            "return document.activeElement.closest('svg')?.classList.value ?? ''"
        ):
            break
    assert window.driver.execute_script("return document.activeElement.getAttribute('aria-label')")
    window.press(Keys.ENTER)
    wait_for(window, lambda driver: "/job/" in driver.current_url)


def test_the_slider_shows_another_round(window):
    """A move of the slider, here by the keyboard, shows that round."""
    window.open("replay?round=8")
    slider = window.driver.find_element(By.CSS_SELECTOR, "[data-slider]")
    slider.send_keys(Keys.ARROW_LEFT)
    wait_for(window, lambda driver: "Round 7" in driver.title)
