import http.client
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metasched.shared_dir import published_status
from metasched.web import server
from metasched.web.server import WebStartError, loopback_socket, unix_socket
from tests.unit.web.conftest import HEADER, listens, make_status

ME = pwd.getpwuid(os.getuid()).pw_name


class PageProcess:
    """A running `metasched web` on a Unix socket."""

    def __init__(self, directory, extra=""):
        self.path = directory / "web.sock"
        (directory / "shared").mkdir()
        published_status.publish(directory / "shared", make_status())
        config = directory / "metasched.toml"
        config.write_text(
            f'[paths]\nstate = "{directory}/state"\nshared = "{directory}/shared"\n'
            f'[web]\nsocket = "{self.path}"\n{extra}'
        )
        command = [sys.executable, "-m", "metasched", "--config", str(config), "web"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not listens(self.path) and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)

    def connect(self):
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(30)
        made.connect(str(self.path))
        return made

    def get(self, path="/", **headers):
        connection = http.client.HTTPConnection("page")
        connection.sock = self.connect()
        connection.request("GET", path, headers={HEADER: "ann", **headers})
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, body

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=60)
        return self.process.returncode, log


def test_the_page_runs_on_its_socket_and_ends_cleanly(tmp_path):
    """The socket has the configured mode; two hundred half-sent requests delay nobody; SIGTERM ends with success."""
    page = PageProcess(tmp_path, f'socket_mode = "0600"\nproxy_users = ["{ME}"]\n')
    slow = []
    try:
        assert page.path.stat().st_mode & 0o777 == 0o600
        for _ in range(200):
            connection = page.connect()
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            slow.append(connection)
        status, body = page.get("/queue")
        assert status == 200
        assert "bert" in body
    finally:
        for connection in slow:
            connection.close()
        code, log = page.end()
    assert code == 0, log
    assert not page.path.exists()
    assert "Traceback" not in log


def test_another_users_process_may_not_connect(tmp_path):
    """A connection of a Unix user whom proxy_users does not name is closed without an answer, and logged."""
    other = next(user.pw_name for user in pwd.getpwall() if user.pw_uid != os.getuid())
    page = PageProcess(tmp_path, f'proxy_users = ["{other}"]\n')
    try:
        with pytest.raises((http.client.HTTPException, OSError)):
            page.get()
    finally:
        code, log = page.end(signal.SIGINT)
    assert code == 0, log
    assert "web_peer_refused" in log


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:0", "192.0.2.1:80", "[::]:0", "example.org:80", "127.0.0.1:http", "127.0.0.1", ":-1"]
)
def test_a_public_or_wrong_address_is_refused(listen):
    """An address that other hosts could reach, or none at all, is an error with the fix."""
    with pytest.raises(WebStartError, match="--listen"):
        loopback_socket(listen)


def test_a_loopback_address_is_taken():
    """A developer's address may be any of this host alone."""
    with loopback_socket("127.0.0.1:0") as made:
        assert made.getsockname()[0] == "127.0.0.1"


def test_a_socket_in_use_is_not_taken_over(tmp_path):
    """A second page does not take the socket of a first one; a socket that a dead process left is replaced."""
    path = tmp_path / "s"
    with unix_socket(path, 0o600), pytest.raises(WebStartError, match="already"):
        unix_socket(path, 0o600)
    with unix_socket(path, 0o660):
        assert path.stat().st_mode & 0o777 == 0o660


def test_a_file_in_the_way_is_left_alone(tmp_path):
    """A file that is no socket is not removed."""
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(WebStartError, match="cannot listen"):
        unix_socket(path, 0o600)
    assert path.read_text() == "data"


def test_unknown_groups_and_users_are_named(tmp_path):
    """A group or user of the configuration that does not exist is an error with its key."""
    with pytest.raises(WebStartError, match="socket_group"):
        unix_socket(tmp_path / "s", 0o660, "no-such-group-here")
    with pytest.raises(WebStartError, match="proxy_users"):
        server._number_of("no-such-user-here")


def test_a_missing_directory_is_named(tmp_path):
    """A socket in a directory that does not exist is an error that names it."""
    with pytest.raises(WebStartError, match=r"\[web\] socket"):
        unix_socket(Path(tmp_path / "no" / "s"), 0o600)
