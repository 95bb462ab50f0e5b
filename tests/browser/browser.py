"""A real Chromium, driven by Selenium, that notes what a page must not do."""

import base64
import json
import shutil
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains

WIDTHS = (1280, 360)
SCHEMES = ("light", "dark")
_HEIGHT = 900
_AXE = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
_RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
}


class Browser:
    """One window.

    Args:
        profile: directory of the browser's profile.
        top: the page's address, ending with a slash.
    """

    def __init__(self, profile: Path, top: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or "/usr/bin/chromium"
        for argument in (
            "headless=new",
            "no-sandbox",
            "disable-gpu",
            "disable-dev-shm-usage",
            f"user-data-dir={profile}",
        ):
            options.add_argument(f"--{argument}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.driver.set_page_load_timeout(110)
        self.driver.set_script_timeout(110)
        self._top = top

    def close(self):
        self.driver.quit()

    def press(self, key):
        """Press a key, whichever element has the focus: it may be replaced at any time."""
        ActionChains(self.driver).send_keys(key).perform()

    def open(self, path="", *, width=1280, scheme="light", scripts=True):
        """Load a page of the site in a window of a width, in light or dark, with scripts or without."""
        self._command("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._command(
            "Emulation.setDeviceMetricsOverride", width=width, height=_HEIGHT, deviceScaleFactor=1, mobile=width < 500
        )
        self._command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.problems()
        self.driver.get(self._top + path.lstrip("/"))

    def problems(self):
        """What went wrong since the last call: messages of the console, such as CSP reports, and foreign requests."""
        said = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in {"SEVERE", "WARNING"}]
        events = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        asked = (e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent")
        ours = urlsplit(self._top).netloc
        return said + [
            url for url in asked if urlsplit(url).scheme in {"http", "https"} and urlsplit(url).netloc != ours
        ]

    def violations(self):
        """What axe-core finds, one text each: the rule, and the elements."""
        self.driver.execute_script(_AXE)
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document, arguments[0]).then(done, e => done({error: `${e}`}))",
            _RULES,
        )
        assert "error" not in found, found
        return [
            f"{one['id']}: {one['help']}: {[n['html'][:200] for n in one['nodes'][:3]]}" for one in found["violations"]
        ]

    def overflow(self):
        """Pixels by which the page is wider than the window; 0 for a page that fits."""
        return self.driver.execute_script(
            "return Math.max(0, document.documentElement.scrollWidth - document.documentElement.clientWidth)"
        )

    def elements(self):
        """Number of elements of the page."""
        return self.driver.execute_script("return document.getElementsByTagName('*').length")

    def screenshot(self, path):
        """Write the whole page as a PNG."""
        size = self.driver.execute_script("return [document.documentElement.scrollWidth, document.body.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], 4000), "scale": 1}
        data = self._command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def _command(self, name, **parameters):
        return self.driver.execute_cdp_cmd(name, parameters)
