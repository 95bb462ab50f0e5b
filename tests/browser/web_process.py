"""`metasched web` for a developer, as a process of a test."""

import subprocess
import sys
import time
import urllib.request
from urllib.error import URLError


class WebProcess:
    """A running page.

    Args:
        config: the configuration file.
        log: path of the file for its log.
        viewer: the user as whom the page is seen.

    Attributes:
        top: the page's address, ending with a slash.
    """

    def __init__(self, config, log, viewer):
        self._log = log.open("w+")
        command = [sys.executable, "-m", "metasched", "--config", str(config), "web"]
        self._process = subprocess.Popen([*command, "--listen", "127.0.0.1:0", "--viewer", viewer], stderr=self._log)
        self.top = self._address()

    def log(self):
        self._log.flush()
        self._log.seek(0)
        return self._log.read()

    def kill(self):
        """End the page without letting it know."""
        self._process.kill()
        self._process.wait(60)

    def end(self):
        self._process.terminate()
        self._process.wait(60)
        self._log.close()

    def _address(self):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self._process.poll() is None:
            for word in self.log().split():
                if word.startswith("http://127.0.0.1:"):
                    address = word.rstrip(",")
                    try:
                        urllib.request.urlopen(address, timeout=30).close()  # noqa: S310  the address is checked above
                    except URLError:
                        break
                    return address
            time.sleep(0.05)
        raise AssertionError(f"the page did not start: {self.log()}")
