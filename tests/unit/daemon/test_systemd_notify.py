import socket

import pytest

from metasched.daemon.systemd_notify import notify


@pytest.fixture(params=["file", "abstract"])
def manager(request, tmp_path, monkeypatch):
    """A service manager's socket, in either form that systemd uses."""
    address = f"{tmp_path}/notify" if request.param == "file" else f"\0{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(address)
        channel.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", address.replace("\0", "@"))
        yield channel


def test_a_status_is_sent_with_a_heartbeat(manager):
    """One datagram carries both."""
    notify("READY=1", "STATUS=schedules")
    assert manager.recv(1000).decode().split("\n") == ["READY=1", "STATUS=schedules", "WATCHDOG=1"]


def test_a_missing_service_manager_is_no_error(monkeypatch, tmp_path):
    """NOTIFY_SOCKET is not set, or nothing listens there."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")
