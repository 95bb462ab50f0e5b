"""The web page on a real Slurm, in a real Chromium: `make slurm` installs one where it is missing."""

import getpass
import shutil

import pytest
from selenium.webdriver.common.by import By

from tests.browser.browser import Browser
from tests.browser.web_process import WebProcess

LONGEST = 300
"""Seconds to wait for one change on a loaded host; a free one takes some seconds."""


@pytest.fixture
def window(small_site, tmp_path):
    """A browser window on the web page of the daemon's cluster, seen by the jobs' owner."""
    assert shutil.which("chromedriver"), "install chromium and chromium-driver; `make browser` does"
    page = WebProcess(small_site.config, tmp_path / "web.log", getpass.getuser())
    try:
        made = Browser(tmp_path / "profile", page.top)
        try:
            yield made
        finally:
            made.close()
    finally:
        page.end()


@pytest.mark.timeout(900)
def test_a_job_is_seen_held_running_resized_and_finished_without_a_reload(small_site, window):
    """One load of the job's page shows all that Slurm and the daemon do with the job, and its loss at the end."""
    site = small_site
    site.start()
    blocker = site.submit("exec sleep 1000", "--gres=gpu:4", tag="metasched preempt=no")
    site.wait_status(blocker, "running")
    slurm_job_id, directory = site.train(
        "--epochs 1000 --step-seconds 0.05 --finish-file enough", "--gres=gpu:1", tag="metasched min_gpus=1 max_gpus=2"
    )
    job = site.wait(lambda: site.job(slurm_job_id))
    window.open(f"job/{job.uid}")
    window.driver.execute_script("window.loadedOnce = true")

    def shown():
        return window.driver.find_element(By.ID, "live").get_attribute("innerText").replace("\n", " ")

    def runs():
        return window.driver.find_elements(By.CSS_SELECTOR, "#runs-list-table tbody tr")

    site.wait(lambda: "waiting" in shown() and "Why it waits" in shown(), LONGEST)
    site.cluster.run("scancel", blocker)
    site.wait(lambda: "running" in shown() and "2 of 1-2" in shown(), LONGEST)
    site.wait(lambda: (known := site.job(slurm_job_id)) is not None and known.progress_steps, LONGEST)
    site.submit("exec sleep 1000", "--gres=gpu:3", tag="metasched preempt=no")
    site.wait(lambda: "1 of 1-2" in shown() and len(runs()) == 2, LONGEST)
    (directory / "enough").touch()
    site.wait(lambda: "completed" in shown() and "What happened" in shown(), LONGEST)
    assert window.driver.find_element(By.ID, "plot-loss").is_displayed()
    assert window.driver.execute_script("return window.loadedOnce") is True
    assert window.problems() == []
