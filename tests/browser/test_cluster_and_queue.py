from dataclasses import replace

import pytest
from msgspec.structs import replace as changed
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.browser.browser import SCHEMES, WIDTHS
from tests.browser.site import make_site

PATHS = ("", "queue")
WAIT_SECONDS = 60


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_page_is_accessible_and_asks_for_nothing_foreign(page, browser, path, width, scheme):
    """At every width, light and dark: axe-core finds nothing, nothing overflows, no CSP report, no foreign request."""
    page.publish()
    browser.open(path, width=width, scheme=scheme)
    assert browser.violations() == []
    assert browser.overflow() == 0
    assert browser.problems() == []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("width", WIDTHS)
def test_an_empty_cluster_says_so(page, browser, path, width):
    """Without nodes and jobs each page says in words that there are none."""
    page.publish(nodes=0, waiting=0)
    browser.open(path, width=width)
    assert browser.driver.find_element(By.CSS_SELECTOR, ".empty").text.startswith("No ")
    assert browser.violations() == []


@pytest.mark.parametrize("path", PATHS)
def test_a_large_cluster_fits(page, browser, path):
    """With 4,096 GPUs and 10,000 live jobs a page has at most 8,000 elements and 100 rows, and stays accessible."""
    page.publish(nodes=512, waiting=9_000)
    browser.open(path)
    assert browser.elements() <= 8_000
    assert len(browser.driver.find_elements(By.CSS_SELECTOR, "tbody tr")) <= 100
    assert browser.problems() == []
    assert browser.violations() == []


def test_a_job_that_starts_is_seen_without_a_reload(page, browser):
    """The queue changes by itself when the daemon publishes another status; the document stays the same."""
    status = make_site(nodes=1, waiting=1)
    waiting = status.jobs[-1]
    page.publish(replace(status, jobs=(waiting,)))
    browser.open("queue")
    browser.driver.execute_script("window.kept = true")
    assert "waiting" in browser.driver.find_element(By.CSS_SELECTOR, "tbody").text
    running = changed(waiting, status="running", nodes={"n001": 4}, runs=1)
    page.publish(replace(status, jobs=(running,), jobs_version=status.jobs_version + 1))
    wait_for(browser, lambda driver: "running" in driver.find_element(By.CSS_SELECTOR, "tbody").text)
    assert browser.driver.execute_script("return window.kept") is True
    assert browser.problems() == []


def test_the_pages_work_by_keyboard(page, browser):
    """The first stop is the skip link, which leads to the content; the navigation and the filter follow."""
    page.publish()
    browser.open("queue")
    browser.press(Keys.TAB)
    assert "Skip" in browser.driver.switch_to.active_element.text
    browser.press(Keys.ENTER)
    assert browser.driver.execute_script("return document.activeElement.id") == "content"
    stops = []
    for _ in range(12):
        browser.press(Keys.TAB)
        focused = browser.driver.switch_to.active_element
        stops.append(focused.get_attribute("name") or focused.text)
    assert {"q", "user", "account", "state", "sort"} <= set(stops)


def test_updates_can_be_paused(page, browser):
    """The button stops and continues the updates, and says which."""
    page.publish()
    browser.open("")
    button = browser.driver.find_element(By.CSS_SELECTOR, "[data-pause]")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert button.get_attribute("aria-pressed") == "false"


def test_the_queue_is_filtered_without_scripts(page, browser):
    """Without JavaScript the filter, the pages and the links between the pages work."""
    page.publish()
    browser.open("queue", scripts=False)
    try:
        driver = browser.driver
        driver.find_element(By.CSS_SELECTOR, "a[rel=next]").click()
        wait_for(browser, lambda driver: "Page 2 of" in driver.page_source)
        driver.find_element(By.NAME, "user").send_keys("bob")
        Select(driver.find_element(By.NAME, "state")).select_by_visible_text("running")
        driver.find_element(By.CSS_SELECTOR, ".filters button").click()
        wait_for(browser, lambda driver: shown_users(driver) == {"bob"})
        driver.find_element(By.LINK_TEXT, "Cluster").click()
        wait_for(browser, lambda driver: "n001" in driver.page_source)
        assert driver.find_elements(By.LINK_TEXT, "Refresh")
    finally:
        browser.open("")


def shown_users(driver):
    """The users in the table of jobs."""
    return {cell.text.split("\n")[0] for cell in driver.find_elements(By.CSS_SELECTOR, "td[data-label=User]")}


def wait_for(browser, condition):
    """Wait until a condition holds; a new page may take an element away between finding and reading it."""
    ignored = [StaleElementReferenceException]
    WebDriverWait(browser.driver, WAIT_SECONDS, ignored_exceptions=ignored).until(condition)
