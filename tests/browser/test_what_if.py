"""A what-if that an admin starts in the browser, followed to its result; and one whose page is killed."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.ui import WebDriverWait

from metasched.slurm.client import JobState
from tests.browser.browser import Browser
from tests.browser.web_process import WebProcess
from tests.fakes.fake_nodes import FakeNode
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.site import FakeSite

RESULTS = "state/web"


@pytest.fixture
def directory(tmp_path):
    """A site with a job that runs, a job that waits for it, and their rounds; ``ann`` is an admin."""
    site = FakeSite(tmp_path, FakeSlurm([FakeNode("n1", gpus=4, cpus=16)]))
    first = site.add("--gres=gpu:4")
    site.add("--gres=gpu:4")
    site.run_until(lambda: site.state(first) is JobState.RUNNING)
    site.run(5)
    site.close()
    (tmp_path / "metasched.toml").write_text(
        f'[paths]\nstate = "{site.store.path.parent}"\nshared = "{site.config.paths.shared}"\n'
        f'[access]\nadmins = ["ann"]\n[web]\nstate = "{tmp_path / RESULTS}"\n'
    )
    return tmp_path


@pytest.fixture
def page(directory):
    """The page on it."""
    made = WebProcess(directory / "metasched.toml", directory / "log", "ann")
    yield made
    made.end()


@pytest.fixture
def window(directory, page):
    """A browser on the form."""
    made = Browser(directory / "profile", page.top)
    made.open("policies/what-if")
    yield made
    made.close()


def start(browser):
    """Choose a policy and start the what-if."""
    browser.driver.find_element(By.CSS_SELECTOR, "input[name=policy][value=srtf]").click()
    button = browser.driver.find_element(By.CSS_SELECTOR, "#starter button")
    button.click()
    WebDriverWait(browser.driver, 60).until(staleness_of(button))


def what_if_pid(page):
    """The number of the process of the what-if that the page has logged."""
    deadline = time.monotonic() + 60
    while (found := re.search(r"what_if_started.*?\bpid=(\d+)|pid=(\d+).*?what_if_started", page.log())) is None:
        assert time.monotonic() < deadline, page.log()
        time.sleep(0.02)
    return int(found[1] or found[2])


def is_alive(pid):
    """Whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.timeout(800)  # the what-if is a process of the lowest priority
def test_an_admin_starts_a_what_if_and_sees_its_result(page, window):
    """The result comes by itself, without a reload: both policies, and when each job ends under them."""
    start(window)
    window.driver.execute_script("window.same = true")
    WebDriverWait(window.driver, 600).until(lambda driver: driver.find_elements(By.ID, "table-frame-2"))
    text = window.driver.find_element(By.ID, "live").text
    assert "fifo (now)" in text
    assert "srtf" in text
    assert "failed" not in text
    assert len(window.driver.find_elements(By.CSS_SELECTOR, "#table-frame-2 tbody tr")) == 2
    assert window.driver.execute_script("return window.same") is True
    assert window.problems() == []


def test_a_page_that_is_killed_leaves_no_what_if(directory, page, window):
    """The process of the what-if ends without a result, although nobody could tell it."""
    start(window)
    pid = what_if_pid(page)
    os.kill(pid, signal.SIGSTOP)  # so that the result does not come before the kill
    page.kill()
    os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list((directory / RESULTS).glob("what-if-*.json")) == []
