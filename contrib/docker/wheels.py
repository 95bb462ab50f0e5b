"""Wheels of metasched and its requirements, for the Python of another host: `wheels.py DIRECTORY 3.13 [--torch]`.

The directory holds these wheels and nothing else afterwards. pip's settings and contrib/constraints.txt apply. Torch is
left out by default: it is large, and some distributions have a package of it.
"""

import argparse
import email
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--quiet"]


def needed(wheel: Path, extras: Collection[str]) -> list[str]:
    """Return the requirements of some extras in a wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    lines = (line.partition(";") for line in metadata.get_all("Requires-Dist", []))
    wanted = {f'extra == "{extra}"' for extra in extras}
    return [requirement.strip() for requirement, _, marker in lines if any(extra in marker for extra in wanted)]


def main() -> int:
    """Fill the directory; wheels that it has already are not fetched again, and it stays as it is after an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("python")
    parser.add_argument("--torch", action="store_true")
    asked = parser.parse_args()
    fill(asked.directory.resolve(), ("daemon", "shim") if asked.torch else ("daemon",), asked.python)
    return 0


def fill(directory: Path, extras: Collection[str], python: str) -> None:
    """Replace the content of a directory, which is made if it is missing, by the wheels of some extras.

    Raises:
        SystemExit: the directory holds more than wheels.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if others := sorted(path.name for path in directory.iterdir() if path.suffix != ".whl"):
        raise SystemExit(f"{directory} holds more than wheels ({others[0]}): name another directory")
    with tempfile.TemporaryDirectory(prefix=".wheels-", dir=directory.parent) as scratch:
        fresh = Path(scratch, "fresh")
        build(fresh)
        wheel = next(fresh.glob("metasched-*.whl"))
        fetch(fresh, directory, needed(wheel, extras), python)
        directory.rename(Path(scratch, "old"))
        fresh.rename(directory)


def build(directory: Path) -> None:
    """Build metasched's wheel in the directory."""
    with tempfile.TemporaryDirectory() as scratch:
        # Built from a copy: setuptools leaves files in a source tree, and includes those of earlier builds.
        files = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            timeout=60,
            check=True,
        ).stdout.split(b"\0")
        source = Path(scratch, "source")
        for file in filter(None, files):
            path = file.decode()
            if (ROOT / path).is_file():
                (source / path).parent.mkdir(parents=True, exist_ok=True)
                (source / path).write_bytes((ROOT / path).read_bytes())
                (source / path).chmod((ROOT / path).stat().st_mode & 0o777)
        wheel = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), str(source)]
        subprocess.run([*PIP, *wheel], timeout=600, check=True)


def fetch(directory: Path, old: Path, requirements: list[str], python: str) -> None:
    """Download wheels of the requirements and their requirements into `directory`, from `old` or a registry."""
    download = [
        "download",
        "--dest",
        str(directory),
        "--find-links",
        str(old),
        "--constraint",
        str(ROOT / "contrib" / "constraints.txt"),
        "--python-version",
        python,
        "--only-binary=:all:",
        *requirements,
    ]
    subprocess.run([*PIP, *download], timeout=1800, check=True)


if __name__ == "__main__":
    sys.exit(main())
