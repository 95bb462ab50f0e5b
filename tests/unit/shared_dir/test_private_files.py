"""Private files: the operating system lets their readers read, and nobody else."""

import errno
import os
import pwd
import stat
import struct
from contextlib import contextmanager

import pytest

from metasched.shared_dir.private_files import (
    ACL_ATTRIBUTE,
    NoReadersError,
    PrivateFileError,
    PrivateFiles,
    Readers,
    encode_acl,
)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
NOBODY, DAEMON = pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("daemon").pw_uid


@contextmanager
def user(number):
    """Let this process be another user."""
    os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(0)


def test_the_list_is_what_linux_keeps():
    """Entries are sorted by kind and number; the mask bounds readers to reading; others have nothing."""
    entries = [
        struct.unpack_from("<HHI", encode_acl(Readers(frozenset({9, 5}), frozenset({7}))), 4 + 8 * i) for i in range(7)
    ]
    unset = 0xFFFFFFFF
    assert entries == [
        *((1, 6, unset), (2, 4, 5), (2, 4, 9), (4, 0, unset), (8, 4, 7), (16, 4, unset), (32, 0, unset)),
    ]


@as_root
def test_the_one_user_may_read_and_no_other(open_tmp):
    """The reader opens the file, another user does not, and neither lists the directory nor writes."""
    files = PrivateFiles(open_tmp / "private")
    files.prepare()
    files.write("1.json", b"secret", Readers(frozenset({NOBODY})))
    path = open_tmp / "private" / "1.json"
    with user(NOBODY):
        assert path.read_bytes() == b"secret"
        with pytest.raises(PermissionError):
            list(path.parent.iterdir())
        with pytest.raises(PermissionError):
            path.write_bytes(b"")
    with user(DAEMON), pytest.raises(PermissionError):
        path.read_bytes()


def test_a_file_without_other_readers_needs_no_list(tmp_path, monkeypatch):
    """On a file system without lists the daemon's own files are written."""
    monkeypatch.setattr(os, "setxattr", None)
    files = PrivateFiles(tmp_path)
    files.write("all.json", b"x", Readers(frozenset({os.geteuid()})))
    assert stat.S_IMODE((tmp_path / "all.json").stat().st_mode) == 0o600


def _unsupported(*_):
    raise OSError(errno.ENOTSUP, "Operation not supported")


def test_without_lists_there_is_no_file(tmp_path, monkeypatch):
    """The earlier file goes, too: nobody reads what is outdated."""
    monkeypatch.setattr(os, "setxattr", _unsupported)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    (tmp_path / "1.json").write_text("old")
    with pytest.raises(NoReadersError, match="access control lists"):
        PrivateFiles(tmp_path).write("1.json", b"new", Readers(frozenset({NOBODY})))
    assert list(tmp_path.iterdir()) == []


@as_root
def test_root_gives_the_file_away_where_there_are_no_lists(tmp_path, monkeypatch):
    """The file is then its one reader's."""
    monkeypatch.setattr(os, "setxattr", _unsupported)
    PrivateFiles(tmp_path).write("1.json", b"x", Readers(frozenset({NOBODY})))
    facts = (tmp_path / "1.json").stat()
    assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (NOBODY, 0o600)


@as_root
def test_a_group_of_admins_may_read(open_tmp):
    """Members of the group read by the list."""
    files = PrivateFiles(open_tmp)
    files.write("all.json", b"x", Readers(groups=frozenset({4})))
    assert os.getxattr(open_tmp / "all.json", ACL_ATTRIBUTE) == encode_acl(Readers(groups=frozenset({4})))


def test_a_planted_link_is_refused(tmp_path):
    """A link in the place of the directory is an error that names it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "private").symlink_to("elsewhere")
    with pytest.raises(PrivateFileError, match="private: not a directory of the daemon's user"):
        PrivateFiles(tmp_path / "private").prepare()


@as_root
def test_a_directory_of_another_user_is_refused(tmp_path):
    """The daemon writes nothing into a directory that somebody else made."""
    (tmp_path / "private").mkdir()
    os.chown(tmp_path / "private", NOBODY, -1)
    with pytest.raises(PrivateFileError, match="not a directory of the daemon's user"):
        PrivateFiles(tmp_path / "private").prepare()


def test_a_directory_in_the_place_of_a_file_is_one_error(tmp_path):
    """The message names the file."""
    (tmp_path / "1.json" / "x").mkdir(parents=True)
    with pytest.raises(PrivateFileError, match=r"1\.json"):
        PrivateFiles(tmp_path).write("1.json", b"x", Readers())
