import os
import socket
import stat
import threading

import pytest

from metasched.core.file_replacement import replace_file


@pytest.mark.parametrize(("asked", "umask", "mode"), [(0o644, 0o077, 0o644), (0o600, 0, 0o600), (None, 0o027, 0o640)])
def test_a_file_has_its_mode_under_any_umask(tmp_path, asked, umask, mode):
    """Without a mode, the umask says who may read."""
    before = os.umask(umask)
    try:
        replace_file(tmp_path / "file", b"new", mode=asked)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


@pytest.mark.parametrize("fsync", [False, True])
def test_an_error_leaves_the_old_file_alone(tmp_path, fsync):
    """Nothing else remains in the directory."""
    path = tmp_path / "file"
    replace_file(path, b"old")

    def refuse(descriptor):
        assert os.fstat(descriptor).st_size == 0
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new", fsync=fsync, before_content=refuse)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_planted_link_is_replaced_and_not_followed(tmp_path):
    """The name of the temporary file can be guessed; whoever links it elsewhere changes no other file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".file.{socket.gethostname()}.{os.getpid()}").symlink_to(victim)
    replace_file(tmp_path / "file", b"new")
    assert (victim.read_text(), (tmp_path / "file").read_bytes()) == ("precious", b"new")


def by_another_thread(path, monkeypatch):
    other = threading.Thread(target=replace_file, args=(path, b"other"))
    other.start()
    other.join()


def by_another_host(path, monkeypatch):
    """A process with the same number, on a host with another name."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "elsewhere")
        replace_file(path, b"other")


@pytest.mark.parametrize("replaced", [by_another_thread, by_another_host])
def test_two_that_replace_one_file_do_not_disturb_each_other(tmp_path, monkeypatch, replaced):
    """While one writes, another one replaces the file; the content is whole each time, and the last one wins."""
    path = tmp_path / "file"
    seen = []

    def replace_meanwhile(_):
        replaced(path, monkeypatch)
        seen.append(path.read_bytes())

    replace_file(path, b"one", before_content=replace_meanwhile)
    assert (seen, path.read_bytes(), list(tmp_path.iterdir())) == ([b"other"], b"one", [path])
