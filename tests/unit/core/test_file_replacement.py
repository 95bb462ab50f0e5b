import os
import secrets
import stat

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


def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    """Whoever guesses the name of the temporary file, and links it elsewhere, changes no other file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0" * 2 * size)
    planted = tmp_path / f".file.{'0' * 16}.new"
    planted.symlink_to(victim)
    with pytest.raises(FileExistsError):
        replace_file(tmp_path / "file", b"new")
    assert (victim.read_text(), planted.is_symlink()) == ("precious", True)


def test_what_a_crash_has_left_is_removed(tmp_path):
    """Temporary files of a day ago have no writer any more; later ones may have one on another host."""
    old, new, foreign = (tmp_path / name for name in (f".a.b.{'0' * 16}.new", f".a.b.{'1' * 16}.new", ".a.b.new"))
    for path in (old, new, foreign):
        path.touch()
    for path in (old, foreign):
        os.utime(path, (1e9, 1e9))
    replace_file(tmp_path / "file", b"new")
    assert sorted(tmp_path.iterdir()) == sorted([new, foreign, tmp_path / "file"])


def test_two_that_replace_one_file_do_not_disturb_each_other(tmp_path):
    """While one writes, another one replaces the file; the content is whole each time, and the last one wins.

    Both are of one thread, because threads in containers can have the number and the host name of each other.
    """
    path = tmp_path / "file"
    seen = []

    def replace_meanwhile(_):
        replace_file(path, b"other")
        seen.append(path.read_bytes())

    replace_file(path, b"one", before_content=replace_meanwhile)
    assert (seen, path.read_bytes(), list(tmp_path.iterdir())) == ([b"other"], b"one", [path])
