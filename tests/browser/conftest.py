"""One browser and one running page for all tests of a process."""

import shutil
import subprocess
import sys
import time
import urllib.request
from urllib.error import URLError

import pytest

from metasched.shared_dir import published_status
from metasched.store import Store
from tests.browser.browser import Browser
from tests.browser.site import make_site


class RunningPage:
    """`metasched web` for a developer, on a directory whose status the tests replace."""

    def __init__(self, directory):
        self.shared = directory / "shared"
        self.shared.mkdir()
        self.database = directory / "state" / "metasched.db"
        Store.open(self.database).close()
        config = directory / "metasched.toml"
        config.write_text(f'[paths]\nstate = "{self.database.parent}"\nshared = "{self.shared}"\n')
        self._log = (directory / "log").open("w+")
        command = [sys.executable, "-m", "metasched", "--config", str(config), "web"]
        self._process = subprocess.Popen([*command, "--listen", "127.0.0.1:0", "--viewer", "ann"], stderr=self._log)
        self.top = self._address()

    def publish(self, status=None, **changes):
        """Publish a status, by default that of a busy site."""
        published_status.publish(self.shared, status or make_site(**changes))

    def log(self):
        self._log.flush()
        self._log.seek(0)
        return self._log.read()

    def end(self):
        self._process.terminate()
        self._process.wait(60)
        self._log.close()

    def _address(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            for word in self.log().split():
                if word.startswith("http://127.0.0.1:"):
                    address = word.rstrip(",")
                    try:
                        urllib.request.urlopen(address, timeout=10).close()  # noqa: S310  the address is checked above
                    except URLError:
                        break
                    return address
            time.sleep(0.05)
        raise AssertionError(f"the page did not start: {self.log()}")


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
