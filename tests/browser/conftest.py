"""One browser and one running page for all tests of a process."""

import shutil

import pytest

from metasched.shared_dir import published_status
from metasched.store import Store
from tests.browser.browser import Browser
from tests.browser.site import make_site
from tests.browser.web_process import WebProcess


class RunningPage:
    """`metasched web` for a developer, on a directory whose status the tests replace."""

    def __init__(self, directory):
        self.shared = directory / "shared"
        self.shared.mkdir()
        self.database = directory / "state" / "metasched.db"
        Store.open(self.database).close()
        config = directory / "metasched.toml"
        config.write_text(f'[paths]\nstate = "{self.database.parent}"\nshared = "{self.shared}"\n')
        self._process = WebProcess(config, directory / "log", "ann")
        self.top, self.log, self.end = self._process.top, self._process.log, self._process.end

    def publish(self, status=None, **changes):
        """Publish a status, by default that of a busy site."""
        published_status.publish(self.shared, status or make_site(**changes))


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """A running page with a busy site."""
    made = RunningPage(tmp_path_factory.mktemp("site"))
    made.publish()
    yield made
    made.end()


@pytest.fixture(scope="session")
def browser(page, tmp_path_factory):
    """A browser that shows it."""
    assert shutil.which("chromedriver"), "install chromium and chromium-driver; `make browser` does"
    made = Browser(tmp_path_factory.mktemp("profile"), page.top)
    yield made
    made.close()
