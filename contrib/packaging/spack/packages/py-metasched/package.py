"""Spack recipe of the trainers' side: `spack repo add contrib/packaging/spack`, then `spack install py-metasched`.

The daemon's host installs a package or a virtual environment: Spack lacks msgspec, sqlite-utils and structlog, and has
older releases of APScheduler, HiGHS and PuLP than the daemon needs. Until the project has an address, `spack
dev-build py-metasched@main` in a checkout installs it.
"""

from spack.package import *


class PyMetasched(PythonPackage):
    """The shim of trainings under metasched, a Slurm meta-scheduler for deep-learning training, and their wrapper."""

    homepage = "https://example.org/metasched"
    git = "https://example.org/metasched.git"

    license("Apache-2.0")

    version("main", branch="main")

    variant("torch", default=True, description="Depend on Spack's PyTorch, and not on one of the user's")

    depends_on("python@3.9:", type=("build", "run"))
    depends_on("py-setuptools@69:", type="build")
    depends_on("py-torch@2.4:", type="run", when="+torch")

    import_modules = ("trainer_shim.environment.world",)
