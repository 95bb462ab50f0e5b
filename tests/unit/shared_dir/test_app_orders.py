"""Files of orders: hostile until they are parsed."""

import json
import os

import pytest

from metasched.core.apps import TrialOrder
from metasched.shared_dir.app_orders import MAX_BYTES, MAX_ORDERS, OrdersTooLargeError, parse_orders, read_orders
from metasched.shared_dir.owned_files import RefusedFileError

UID = "0123456789abcdef"
APP = "app:ann/search"


def line(**keys):
    return json.dumps({"v": 1, "kind": "order", "uid": UID} | keys).encode() + b"\n"


def test_the_latest_order_of_a_trial_counts():
    """But an end is for good; unknown keys and kinds are ignored, and so is a line without its end."""
    other = f"{UID}_3"
    data = line(max_gpus=4) + line(max_gpus=2, more=1) + line(kind="news") + line(uid=other, end=True, words="bad")
    found = parse_orders(data + line(uid=other) + line(end=True)[:-1], APP)
    assert found.orders == (
        TrialOrder(APP, UID, max_gpus=2),
        TrialOrder(APP, other, end=True, words="bad"),
    )
    assert found.refused == 0


@pytest.mark.parametrize(
    "bad",
    [
        b"\n",
        b"{}\n",
        b"\xff\n",
        b"[" * 100_000 + b"\n",
        line(v=2),
        line(uid="../../etc"),
        line(uid=f"{UID}\n"),
        line(uid=7),
        line(end="yes"),
        line(max_gpus=0),
        line(max_gpus=10**9),
        line(max_gpus=1.5),
        line(words="x" * 201),
        line(words=None),
    ],
)
def test_what_the_protocol_does_not_allow_is_refused(bad):
    """The other lines count."""
    assert parse_orders(bad + line(end=True), APP) == ((TrialOrder(APP, UID, end=True),), 1)


def test_of_too_many_orders_the_latest_count():
    """Like those of a log that was never shortened."""
    data = b"".join(line(uid=f"{UID}_{number}") for number in range(MAX_ORDERS + 5))
    found = parse_orders(data, APP)
    assert [found.orders[0].uid, found.orders[-1].uid] == [f"{UID}_5", f"{UID}_{MAX_ORDERS + 4}"]


def test_a_file_is_read_when_it_has_changed(tmp_path):
    """As the owner's own regular file only, up to a size."""
    me, path = os.geteuid(), tmp_path / UID / "app.jsonl"
    with pytest.raises(FileNotFoundError):
        read_orders(tmp_path, UID, me, APP, None)
    path.parent.mkdir()
    path.write_bytes(line(end=True))
    version, found = read_orders(tmp_path, UID, me, APP, None)
    assert len(found.orders) == 1
    assert read_orders(tmp_path, UID, me, APP, version) is None
    with pytest.raises(RefusedFileError):
        read_orders(tmp_path, UID, me + 1, APP, None)
    path.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(OrdersTooLargeError):
        read_orders(tmp_path, UID, me, APP, version)
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(RefusedFileError):
        read_orders(tmp_path, UID, me, APP, None)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RefusedFileError):
        read_orders(tmp_path, UID, me, APP, None)
