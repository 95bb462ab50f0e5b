import http.client
import socket
import threading

import pytest
from structlog.testing import capture_logs

from metasched.metrics import endpoint as module
from metasched.metrics.endpoint import endpoint, parse_address
from metasched.shared_dir.published_status import replace_file


@pytest.fixture
def port():
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port, path="/metrics", method="GET"):
    """Return status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_file_is_served_as_it_is_now(tmp_path, port):
    """A missing file is 503, another path 404; each scrape has the file of that moment."""
    file = tmp_path / "metrics.prom"
    with endpoint(f"127.0.0.1:{port}", file):
        assert ask(port)[0] == 503
        file.write_text("a 1\n")
        assert ask(port) == (200, b"a 1\n")
        assert ask(port, method="HEAD") == (200, b"")
        assert ask(port, "/../../etc/passwd")[0] == 404
        assert ask(port, method="POST")[0] == 501


def test_a_scrape_in_the_middle_of_a_publication_gets_a_whole_file(tmp_path, port):
    """The file is replaced again and again meanwhile; each answer is one of its contents, and none is cut or mixed."""
    file, ended = tmp_path / "metrics.prom", threading.Event()
    contents = [f"a {number}\n".encode() * 20_000 for number in (1, 2)]

    def publish():
        while not ended.is_set():
            for content in contents:
                replace_file(file, content)

    replace_file(file, contents[0])
    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        with endpoint(f"127.0.0.1:{port}", file):
            answers = {ask(port) for _ in range(30)}
    finally:
        ended.set()
        publisher.join()
    assert answers <= {(200, content) for content in contents}


def test_an_address_in_use_is_a_log_line(tmp_path, port):
    """The daemon goes on without the endpoint."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with capture_logs() as logs, endpoint(f"127.0.0.1:{port}", tmp_path / "m"):
            pass
    assert [line["event"] for line in logs] == ["metrics_not_served"]


def test_silent_clients_do_not_keep_others_out_for_good(tmp_path, port, monkeypatch):
    """Only so many are served at once, and a client that says nothing is dropped in time."""
    monkeypatch.setattr(module._Handler, "timeout", 0.2)
    (tmp_path / "m").write_text("a 1\n")
    with endpoint(f"127.0.0.1:{port}", tmp_path / "m"):
        silent = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(module.MAX_REQUESTS)]
        for one in silent:
            assert one.recv(1) == b""
            one.close()
        assert ask(port) == (200, b"a 1\n")


@pytest.mark.parametrize("text", ["9410", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", "a b:1", "::1:9410"])
def test_addresses_have_one_form(text):
    """Host and port; an IPv6 address stands in brackets."""
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(text)
    assert parse_address("[::1]:9410") == ("::1", 9410)
