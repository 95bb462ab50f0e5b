"""Server time, first paint, bytes and elements of every page of `metasched web`, on a large generated site.

    python -m contrib.benchmarks.web [--nodes N] [--live N] [--runs N] [--repeat N] [--no-browser] [--json]

The site has nodes of eight GPUs, live jobs, and runs that are over (contrib/benchmarks/large_site.py). A process of
`metasched web` answers over TCP. "server" is the median time from a request to the whole answer, "CPU" the mean of what
the server computes for it, on which other work of the machine has little influence. The first answer after a
publication parses the status. "first load" is what a browser without a cache fetches, compressed: the page, its styles
and its scripts. Bytes, elements and rows are targets: the exit status is 1 where one is missed. Times are goals, for a
quiet machine.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

from starlette.routing import Route

from contrib.benchmarks import common
from contrib.benchmarks.large_site import APP, ROUND_SECONDS, SHOWCASE, USERS, Sizes, build, status
from metasched.configuration.config import Config
from metasched.forecast.what_if_result import WhatIfTask, read_result
from metasched.shared_dir.published_status import publish
from metasched.simulator.live_settings import live_settings
from metasched.web.application import all_pages
from metasched.web.site import API

MOST_BYTES, MOST_ELEMENTS, MOST_ROWS = 100_000, 8_000, 100
SERVER_SECONDS, PAINT_SECONDS = 0.1, 1.0
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "/timeline": ("", "?span=7d", "?by=jobs&span=7d"),
    "/fairness": ("", "?by=job&span=30d", "?by=account&span=30d"),
    "/queue": ("", "?page=200&sort=name"),
    "/replay": ("", "?round=9"),
}
"""Queries with which a page does most work."""
_START_SECONDS = 120.0


class Elements(HTMLParser):
    """Counts a page's elements and the rows of its largest table, and lists its styles and scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.count = self.rows = 0
        self.files: list[str] = []
        self._rows = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count one element."""
        self.count += 1
        given = dict(attrs)
        if tag == "tbody":
            self._rows = 0
        elif tag == "tr":
            self._rows += 1
            self.rows = max(self.rows, self._rows)
        elif (tag == "link" and given.get("rel") == "stylesheet") or (tag == "script" and given.get("src")):
            self.files.append(given.get("href") or given.get("src") or "")


@dataclass(frozen=True)
class Server:
    """A running page: where it answers, and its process."""

    host: str
    port: int
    pid: int


@dataclass(frozen=True)
class Measured:
    """One page: seconds, CPU seconds of the server, bytes of the page and of the first load, elements, rows."""

    seconds: float
    cpu: float
    bytes: int
    first_load: int
    elements: int
    rows: int


def addresses() -> list[str]:
    """The addresses of every page that is read, with its costly queries; JSON after HTML."""
    paths = [
        route.path
        for page in all_pages()
        for route in page.routes
        if isinstance(route, Route) and "GET" in (route.methods or ())
    ]
    named = [re.sub(r"\{uid(:path)?\}", APP if "/app/" in path else SHOWCASE, path) for path in paths]
    found = [path + query for path in named for query in VARIANTS.get(path.removeprefix(API), ("",))]
    return sorted(found, key=lambda address: (address.startswith(API), address))


@contextmanager
def running(base: Path) -> Iterator[Server]:
    """A process of the web page on the site below a directory."""
    config = base / "metasched.toml"
    config.write_text(f'[paths]\nstate = "{base}/state"\nshared = "{base}/shared"\n')
    command = [sys.executable, "-m", "metasched", "--config", str(config), "web"]
    log = (base / "log").open("w+")
    argv = [*command, "--listen", "127.0.0.1:0", "--viewer", USERS[0]]
    process = subprocess.Popen(argv, stderr=log, env={**os.environ, "METASCHED_CONFIG": ""})
    try:
        deadline = time.monotonic() + _START_SECONDS
        while (found := re.search(r"http://(127\.0\.0\.1):(\d+)/", (base / "log").read_text())) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the page did not start: {(base / 'log').read_text()}")
            time.sleep(0.05)
        yield Server(found[1], int(found[2]), process.pid)
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fetch(server: Server, address: str) -> tuple[float, bytes]:
    """Seconds and compressed body of an answer."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
    began = time.perf_counter()
    connection.request("GET", address, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    body = answer.read()
    seconds = time.perf_counter() - began
    connection.close()
    if answer.status != http.client.OK:
        raise SystemExit(f"{address}: status {answer.status}")
    return seconds, body


def text_of(body: bytes) -> str:
    """The text of an answer that may be compressed."""
    return (gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body).decode()


def measure(server: Server, address: str, repeat: int) -> Measured:
    """Fetch a page several times, and its files once."""
    fetch(server, address)
    before = cpu_seconds(server.pid)
    answers = [fetch(server, address) for _ in range(repeat)]
    cpu = (cpu_seconds(server.pid) - before) / repeat
    body = answers[0][1]
    page = Elements("" if address.startswith(API) else text_of(body))
    files = sum(len(fetch(server, file)[1]) for file in dict.fromkeys(page.files))
    seconds = statistics.median(seconds for seconds, _ in answers)
    return Measured(seconds, cpu, len(body), len(body) + files, page.count, page.rows)


def after_publication(server: Server, base: Path, sizes: Sizes, repeat: int) -> tuple[float, float]:
    """Median seconds of the first answer after a publication, and mean CPU seconds."""
    seconds, cpu = [], 0.0
    for _ in range(repeat):
        publish(base / "shared", status(sizes, time.time()))
        before = cpu_seconds(server.pid)
        seconds.append(fetch(server, "/queue")[0])
        cpu += cpu_seconds(server.pid) - before
    return statistics.median(seconds), cpu / repeat


@dataclass(frozen=True)
class MeasuredWhatIf:
    """A what-if as an admin starts it: its CPU seconds, its largest memory in MiB, and jobs by what became of them."""

    cpu: float
    mebibytes: float
    simulated: int
    left_out: int


def measure_what_if(base: Path) -> MeasuredWhatIf:
    """Run the process of a what-if on the site, with the page's limits."""
    config = Config.model_validate({"paths": {"state": str(base / "state"), "shared": str(base / "shared")}})
    settings = live_settings(ROUND_SECONDS, config.schedule.min_round_seconds)
    path = base / "what-if.json"
    database = str(base / "state" / "metasched.db")
    task = WhatIfTask(database, str(path), ("srtf",), USERS[0], time.time(), settings, config.forecast.jobs)
    argv = [sys.executable, "-m", "metasched.forecast.what_if_run", json.dumps(asdict(task))]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    found = read_result(path)
    if found.problem:
        raise SystemExit(f"the what-if: {found.problem}")
    return MeasuredWhatIf(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, len(found.jobs), found.left_out)


def first_paints(server: Server, found: list[str], repeat: int) -> dict[str, float]:
    """Median seconds to the first contentful paint in Chromium with an empty cache; empty without Chromium."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        return {}
    from selenium import webdriver  # noqa: PLC0415  of the tests' packages
    from selenium.webdriver.chrome.service import Service  # noqa: PLC0415

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1280,900"):
        options.add_argument(f"--{argument}")
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    painted = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    paints: dict[str, float] = {}
    try:
        driver.set_page_load_timeout(120)
        driver.execute_cdp_cmd("Network.enable", {})
        driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
        for address in found:
            seconds = []
            for _ in range(repeat):
                driver.get(f"http://{server.host}:{server.port}{address}")
                deadline = time.monotonic() + 30
                while (milliseconds := driver.execute_script(painted)) is None and time.monotonic() < deadline:
                    time.sleep(0.02)
                if milliseconds is not None:
                    seconds.append(float(milliseconds) / 1000)
            if seconds:
                paints[address] = statistics.median(seconds)
    finally:
        driver.quit()
    return paints


def main() -> int:
    """Build the site, measure every page, and print the table; the exit status is 1 where a target is missed."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--nodes", type=common.positive, default=512, help="nodes of eight GPUs (default 512)")
    parser.add_argument("--live", type=common.positive, default=10_000, help="live jobs (default 10000)")
    parser.add_argument("--runs", type=common.positive, default=300_000, help="runs that are over (default 300000)")
    parser.add_argument("--repeat", type=common.positive, default=7, help="requests of a page (default 7)")
    parser.add_argument("--no-browser", action="store_true", help="without first paint")
    options = parser.parse_args()
    sizes = Sizes(options.nodes, options.live, options.runs)
    with tempfile.TemporaryDirectory(prefix="mbench-") as name:
        base = Path(name)
        build(base, sizes, time.time())
        with running(base) as server:
            found = {address: measure(server, address, options.repeat) for address in addresses()}
            publication, parsing = after_publication(server, base, sizes, options.repeat)
            pages = [address for address in found if not address.startswith(API)]
            paints = {} if options.no_browser else first_paints(server, pages, 3)
        what_if = measure_what_if(base)
    print(f"{sizes.nodes * 8} GPUs, {sizes.live} live jobs, {sizes.runs} runs; ms, bytes compressed")
    print("| page | server | CPU | first paint | bytes | first load | elements | rows |")
    print("|---|---|---|---|---|---|---|---|")
    missed, slow = [], []
    for address, one in found.items():
        paint = paints.get(address)
        shown = urlsplit(address).path.replace(APP, "APP").replace(SHOWCASE, "JOB")
        shown += f"?{urlsplit(address).query}" if urlsplit(address).query else ""
        cells = [f"{1000 * one.seconds:.0f}", f"{1000 * one.cpu:.0f}"]
        cells += ["" if paint is None else f"{1000 * paint:.0f}", f"{one.bytes}"]
        html = not address.startswith(API)
        cells += [f"{one.first_load}", f"{one.elements}", f"{one.rows}"] if html else ["", "", ""]
        print(f"| `{shown}` | {' | '.join(cells)} |")
        if html and (one.first_load > MOST_BYTES or one.elements > MOST_ELEMENTS or one.rows > MOST_ROWS):
            missed.append(shown)
        if one.seconds > SERVER_SECONDS or (paint or 0.0) > PAINT_SECONDS:
            slow.append(shown)
    print(f"\nfirst answer after a publication: {1000 * publication:.0f} ms, CPU {1000 * parsing:.0f} ms")
    print(f"slower than {1000 * SERVER_SECONDS:.0f} ms, or {PAINT_SECONDS:.0f} s to the first paint: {slow or 'none'}")
    print(f"over {MOST_BYTES} bytes, {MOST_ELEMENTS} elements or {MOST_ROWS} rows: {missed or 'none'}")
    print(
        f"a what-if of one policy: {what_if.simulated} jobs simulated, {what_if.left_out} left out, "
        f"CPU {what_if.cpu:.0f} s, {what_if.mebibytes:.0f} MiB"
    )
    rows = {address: vars(one) | {"first_paint": paints.get(address)} for address, one in found.items()}
    common.finish({"pages": rows, "publication_seconds": publication, "what_if": vars(what_if)}, as_json=options.json)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
