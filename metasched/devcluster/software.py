"""The programs of Slurm and munge: installed, or unpacked from Debian's packages without root."""

import fcntl
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from metasched.devcluster.errors import PACKAGES, BadSettingError, SlurmMissingError

Mode = Literal["auto", "system", "unpacked"]

DAEMONS = ("slurmctld", "slurmd", "slurmstepd", "munged")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_COMPLETE = ".whole"  # marks a cache entry that was unpacked to its end
_APT_SECONDS = 300
_VERSION_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Software:
    """One installation of Slurm and munge; `root` is the unpacked tree, or None for the system's installation."""

    root: Path | None

    @property
    def path(self) -> str:
        """The PATH that finds the programs."""
        if self.root is None:
            return f"{_installed(os.environ.get('PATH', ''))}:{_SYSTEM_PATH}"
        return f"{self.root}/usr/sbin:{self.root}/usr/bin"

    @property
    def plugin_dir(self) -> Path | None:
        """The directory of Slurm's plugins; None for the default of Slurm's build."""
        return None if self.root is None else self._plugins(self.root)

    def program(self, name: str) -> Path:
        """Return the path of a program; raises SlurmMissingError."""
        # Debian's maintainer scripts, which unpacking does not run, make slurmd a link to slurmd-wlm.
        for candidate in (name, f"{name}-wlm"):
            if found := shutil.which(candidate, path=self.path):
                return Path(found)
        raise SlurmMissingError(f"{name} is not in {self.path}")

    @property
    def release(self) -> tuple[int, int]:
        """Slurm's release, such as (22, 5); raises SlurmMissingError."""
        argv = (str(self.program("slurmctld")), "-V")
        try:
            answer = subprocess.run(
                argv,
                env=self.environment(os.environ),
                capture_output=True,
                text=True,
                timeout=_VERSION_SECONDS,
                input="",
                check=True,
            ).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise SlurmMissingError(f"slurmctld does not run: {error}") from error
        found = re.search(r" (\d+)\.(\d+)", answer)
        if found is None:
            raise SlurmMissingError(f"`{' '.join(argv)}` prints {answer.strip()!r}, and no release")
        return int(found[1]), int(found[2])

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return `base` with PATH and LD_LIBRARY_PATH for the programs and their libraries."""
        env = dict(base)
        if self.root is None:
            env["PATH"] = self.path
            return env
        libraries = self._plugins(self.root)
        env["PATH"] = f"{self.path}:{env.get('PATH', _SYSTEM_PATH)}"
        own = f"{libraries.parent}:{libraries}:{self.root}/lib/{libraries.parent.name}"
        env["LD_LIBRARY_PATH"] = f"{own}:{env['LD_LIBRARY_PATH']}" if env.get("LD_LIBRARY_PATH") else own
        return env

    @staticmethod
    def _plugins(root: Path) -> Path:
        found = sorted(root.glob("usr/lib/*/slurm-wlm"))
        if not found:
            raise SlurmMissingError(f"{root} holds no Slurm plugins: remove it, and it will be fetched again")
        return found[0]


def _installed(path: str) -> str:
    """Return PATH without directories of unpacked trees: a shell that uses another private cluster has them in PATH."""
    # os.path.exists, unlike Path.exists, returns False for an unreadable directory.
    return ":".join(one for one in path.split(":") if not os.path.exists(f"{one}/../../{_COMPLETE}"))  # noqa: PTH110


def find() -> Software:
    """Return the Slurm to use, as the environment's METASCHED_SLURM says.

    "system" is the installed Slurm; "unpacked" is the one in the cache ($METASCHED_CACHE or ``default_cache()``),
    fetched from Debian's archive where the cache has none for this system; "auto", the default, is the first of these
    that works.

    Raises:
        SlurmMissingError: there is no such Slurm.
        BadSettingError: METASCHED_SLURM is another word.
    """
    mode = os.environ.get("METASCHED_SLURM") or "auto"
    if mode not in get_args(Mode):
        raise BadSettingError(f"METASCHED_SLURM={mode!r}: use one of {', '.join(get_args(Mode))}")
    if mode != "unpacked":
        system = Software(None)
        try:
            for name in (*DAEMONS, "sbatch"):
                system.program(name)
        except SlurmMissingError:
            if mode == "system":
                raise
        else:
            return system
    return Software(_unpacked(Path(os.environ.get("METASCHED_CACHE") or default_cache()) / this_system()))


def default_cache() -> Path:
    """Return the default cache of unpacked Slurms; root's is public, because root's cluster runs all users' jobs."""
    return Path("/var/cache/metasched") if os.geteuid() == 0 else Path.home() / ".cache" / "metasched"


def this_system() -> str:
    """Return this system's subdirectory of the cache, such as "debian-12-x86_64": packages run on one system only."""
    try:
        facts = platform.freedesktop_os_release()
    except OSError:
        facts = {}
    return "-".join((facts.get("ID", "unknown"), facts.get("VERSION_ID", "unknown"), platform.machine()))


def _unpacked(cache: Path) -> Path:
    """Return the unpacked tree in the cache, fetched if the cache has none."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return _cached(cache) or _fetch(cache)
    except OSError as error:
        raise SlurmMissingError(f"cannot keep Slurm in {cache} (METASCHED_CACHE names another): {error}") from error


def _cached(cache: Path) -> Path | None:
    complete = sorted(cache.glob(f"slurm-*/{_COMPLETE}"), key=lambda mark: mark.stat().st_mtime)
    return complete[-1].parent if complete else None


def _fetch(cache: Path) -> Path:
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise SlurmMissingError(f"no {tool} here to fetch Slurm with")
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as scratch:
        work = Path(scratch)
        _download(work)
        # Named package_version_architecture.deb
        archives = {path.name.split("_")[0]: path for path in (work / "cache" / "archives").glob("*.deb")}
        if lacking := set(PACKAGES) - archives.keys():
            raise SlurmMissingError(f"apt-get does not fetch {', '.join(sorted(lacking))}")
        tree = work / "tree"
        for archive in archives.values():
            _do("dpkg", "-x", str(archive), str(tree))
        version = archives["slurmctld"].name.split("_")[1]
        tree.chmod(0o755)
        (tree / _COMPLETE).touch()
        target = cache / f"slurm-{version.replace('%3a', ':')}"
        shutil.rmtree(target, ignore_errors=True)
        return tree.rename(target)


def _download(work: Path) -> None:
    """Fetch Slurm's packages and their missing dependencies; apt writes below `work` only."""
    for directory in ("lists/partial", "cache/archives/partial", "log"):
        (work / directory).mkdir(parents=True)
    options = {
        "Dir::State::lists": work / "lists",
        "Dir::Cache": work / "cache",
        "Dir::Log": work / "log",
        "Debug::NoLocking": 1,
        "APT::Sandbox::User": "",
    }
    apt = ("apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items()))
    # An unrelated source may be unreachable: only the second command must succeed.
    warnings = _do(*apt, "update", check=False)
    install = ("install", "--yes", "--no-install-recommends", "--download-only")
    # Packages that are installed here are fetched all the same.
    _do(*apt, *install, "--reinstall", *PACKAGES, context=warnings)


def _do(*argv: str, check: bool = True, context: str = "") -> str:
    """Run one of Debian's tools, and return its standard error; an error message quotes it after `context`."""
    try:
        done = subprocess.run(argv, check=check, capture_output=True, text=True, timeout=_APT_SECONDS, input="")
    except subprocess.CalledProcessError as error:
        raise SlurmMissingError(f"{argv[0]} could not fetch Slurm: {context}{error.stderr.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmMissingError(f"{argv[0]} took longer than {_APT_SECONDS} s") from error
    return done.stderr
