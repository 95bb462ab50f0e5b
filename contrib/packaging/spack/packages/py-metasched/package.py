"""Spack recipe: `spack repo add contrib/packaging/spack`, then `spack install py-metasched` (`~shim` without torch)."""

from spack.package import *


class PyMetasched(PythonPackage):
    """Slurm meta-scheduler for deep-learning training, and the shim of its trainers."""

    homepage = "https://example.org/metasched"
    git = "https://example.org/metasched.git"

    license("Apache-2.0")

    version("main", branch="main")

    variant("daemon", default=True, description="Daemon and command line")
    variant("web", default=False, description="Web page")
    variant("notify", default=False, description="Messages")
    variant("shim", default=False, description="Trainer shim, with torch")

    depends_on("python@3.9:", type=("build", "run"))
    depends_on("python@3.11:", type=("build", "run"), when="+daemon")
    depends_on("py-setuptools@69:", type="build")

    with when("+daemon"):
        depends_on("py-apscheduler@3.11.3:3", type="run")
        depends_on("py-click@8.1:", type="run")
        depends_on("py-highspy@1.15:1", type="run")
        depends_on("py-msgspec@0.22:", type="run")
        depends_on("py-numpy@1.26:", type="run")
        depends_on("py-prometheus-client@0.20:", type="run")
        depends_on("py-pulp@3.3.2:3", type="run")
        depends_on("py-pydantic@2.7:", type="run")
        depends_on("py-rich@13:", type="run")
        depends_on("py-scipy@1.11:", type="run")
        depends_on("py-sqlite-utils@4.2:", type="run")
        depends_on("py-structlog@24.1:", type="run")
    with when("+web"):
        depends_on("py-jinja2@3.1.6:", type="run")
        depends_on("py-starlette@0.47:", type="run")
        depends_on("py-uvicorn@0.34:", type="run")
    with when("+notify"):
        depends_on("py-apprise@1.9:", type="run")
        depends_on("py-jinja2@3.1.6:", type="run")
    with when("+shim"):
        depends_on("py-torch@2.4:", type="run")
