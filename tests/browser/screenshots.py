"""Screenshots of the web page for its documentation: `make screenshots` writes docs/images/web-*.webp.

The site is the generated one of contrib/benchmarks/large_site.py, so that no user of a real cluster is shown.
"""

import base64
import tempfile
import threading
import time
from pathlib import Path

import uvicorn

from contrib.benchmarks.large_site import SHOWCASE, USERS, Sizes, build
from contrib.benchmarks.site_policies import COMPARISONS, STATE
from metasched.web.application import create_application
from metasched.web.settings import WebSettings
from tests.browser.browser import Browser

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SHOTS = {
    "cluster": ("", 1280, "light"),
    "queue": ("queue?sort=ran", 1280, "dark"),
    "job": (f"job/{SHOWCASE}", 1280, "light"),
    "policies": ("policies?shadow=themis", 1280, "light"),
    "narrow": ("queue", 360, "light"),
}
"""Address, width in pixels and colours of each image."""
_HEIGHT, _QUALITY, _START_SECONDS = 860, 70, 60


def main():
    """Make all images."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        database, shared = build(base, Sizes(nodes=24, live=60, runs=900), time.time())
        own = {"state": base / STATE, "comparisons": base / COMPARISONS}
        application = create_application(WebSettings(shared, database, viewer=USERS[0], admins=USERS[:1], **own))
        server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="warning"))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not server.started and time.monotonic() < deadline:
                time.sleep(0.02)
            _shoot(base / "profile", f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/")
        finally:
            server.should_exit = True
            thread.join()


def _shoot(profile, top):
    window = Browser(profile, top)
    try:
        for name, (path, width, scheme) in SHOTS.items():
            window.open(path, width=width, scheme=scheme)
            time.sleep(1)  # charts are drawn from JSON
            clip = {"x": 0, "y": 0, "width": width, "height": _HEIGHT, "scale": 1}
            data = window.driver.execute_cdp_cmd(
                "Page.captureScreenshot",
                {"format": "webp", "quality": _QUALITY, "captureBeyondViewport": True, "clip": clip},
            )["data"]
            (IMAGES / f"web-{name}.webp").write_bytes(base64.b64decode(data))
    finally:
        window.close()


if __name__ == "__main__":
    main()
