"""Wheels of metasched and of what it needs, for the Python of another host: `wheels.py DIRECTORY 3.13 [--torch]`.

pip's own settings hold, and contrib/constraints.txt. Torch is left out unless asked for: it is large, and some
distributions have a package of it.
"""

import argparse
import email
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--quiet"]


def needed(wheel: Path, *, torch: bool) -> list[str]:
    """What the wheel's metadata asks for, for the daemon, and for trainers if so told."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    found = []
    for line in metadata.get_all("Requires-Dist", []):
        requirement, _, marker = line.partition(";")
        if 'extra == "daemon"' in marker or (not marker and torch):
            found.append(requirement.strip())
    return found


def main() -> int:
    """Fill the directory; wheels that are there already are not fetched again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("python")
    parser.add_argument("--torch", action="store_true")
    asked = parser.parse_args()
    asked.directory.mkdir(parents=True, exist_ok=True)
    for old in asked.directory.glob("metasched-*.whl"):
        old.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        # Built from a copy: setuptools leaves its own traces in a source tree, and finds those of others.
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
        build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(asked.directory), str(source)]
        subprocess.run([*PIP, *build], timeout=600, check=True)
    wheel = next(asked.directory.glob("metasched-*.whl"))
    download = [
        "download",
        "--dest",
        str(asked.directory),
        "--find-links",
        str(asked.directory),
        "--constraint",
        str(ROOT / "contrib" / "constraints.txt"),
        "--python-version",
        asked.python,
        "--only-binary=:all:",
        *needed(wheel, torch=asked.torch),
    ]
    subprocess.run([*PIP, *download], timeout=1800, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
