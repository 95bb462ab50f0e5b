"""Metadata of the distribution, whose base needs nothing: controllers get no torch, and trainers no scheduler."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

# The shim lives in users' environments, whose own torch will do; the scheduler asks for no torch, and a newer Python.
SHIM = ["torch>=2.4"]
DAEMON = [
    "apscheduler>=3.11.3,<4",
    "click>=8.1",
    "highspy>=1.15,<2",
    "msgspec>=0.22",
    "numpy>=1.26",
    "prometheus-client>=0.20",
    "pulp>=3.3.2,<4",
    "pydantic>=2.7",
    "rich>=13",
    "scipy>=1.11",
    "sqlite-utils>=4.2",
    "structlog>=24.1",
]
WEB = ["jinja2>=3.1.6", "starlette>=0.47", "uvicorn>=0.34"]
NOTIFY = ["apprise>=1.9", "jinja2>=3.1.6"]  # messages; apprise for mail and services besides webhooks and Slack
SIMULATOR = ["matplotlib>=3.8"]  # for plots alone
PANDAS = ["pandas>=2.2"]  # for metasched.api's data frames
DOCS = ["click-man>=0.5", "furo>=2024.8.6", "myst-parser>=4", "sphinx>=8"]
EXAMPLES = ["optuna>=4", "submitit>=1.5.2"]  # for contrib/examples/hpo.py and submitit_training.py
INTEGRATIONS = ["accelerate>=1.0", "pytorch-lightning>=2.4", "transformers>=4.46"]
TEST = [
    "aiosmtpd",  # a mail server for the tests of messages
    "axe-core-python",  # what checks pages for accessibility, in a browser
    "httpx2",  # what starlette's test client stands on
    "hypothesis",
    "jsonschema",  # for the documents that commands print
    "ipykernel",  # runs notebooks
    "mypy",
    "nbclient",
    "nbformat",
    "pre-commit",
    "pytest>=8",
    "pytest-timeout",
    "pytest-xdist",
    "ruff",
    "selenium>=4.20",
    "setuptools>=70.1",  # a test builds the wheel
    "time-machine",
]
# `make docs` writes them; an installation from a checkout without them has none.
MAN_PAGES = sorted(str(path.relative_to(HERE)) for path in (HERE / "build" / "man").glob("*.1"))

setup(
    name="metasched",
    version="0.1.0",
    description="A Slurm meta-scheduler for deep-learning training",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    url="https://example.org/metasched",  # a placeholder, as in contrib/packaging, until there is an address
    maintainer="metasched",
    maintainer_email="metasched@localhost",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Intended Audience :: System Administrators",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: System :: Clustering",
        "Typing :: Typed",
    ],
    python_requires=">=3.9",
    packages=find_packages(include=["metasched*", "policies*", "trainer_shim*"]),
    package_data={"": ["py.typed"], "metasched.web": ["static/**", "templates/**"]},
    scripts=["slurm_scripts/metasched-run"],  # pip has it run by the Python that it installs into
    data_files=[
        ("share/man/man1", MAN_PAGES),
        # byte for byte, for other hosts
        (
            "share/metasched/slurm_scripts",
            sorted(str(path.relative_to(HERE)) for path in (HERE / "slurm_scripts").iterdir() if path.is_file()),
        ),
    ],
    extras_require={
        "daemon": [f'{requirement}; python_version >= "3.11"' for requirement in DAEMON],
        "docs": [f'{requirement}; python_version >= "3.11"' for requirement in DOCS],
        "examples": EXAMPLES,
        "integrations": INTEGRATIONS,
        "notify": [f'{requirement}; python_version >= "3.11"' for requirement in NOTIFY],
        "pandas": [f'{requirement}; python_version >= "3.11"' for requirement in PANDAS],
        "pyslurm": ["pyslurm"],
        "shim": SHIM,
        "simulator": [f'{requirement}; python_version >= "3.11"' for requirement in SIMULATOR],
        "test": TEST,
        "web": [f'{requirement}; python_version >= "3.11"' for requirement in WEB],
    },
    entry_points={
        "console_scripts": ["metasched = metasched.cli:main"],
        "metasched.policies": [
            "allox = policies.baselines.allox:AlloX",
            "ares = policies.ares.policy:Ares",
            "fifo = policies.baselines.fifo:Fifo",
            "gandiva = policies.baselines.gandiva:Gandiva",
            "gandiva_apps = policies.baselines.gandiva_apps:GandivaApps",
            "gandiva_fair = policies.baselines.gandiva_fair:GandivaFair",
            "gavel_cost = policies.gavel.policies:GavelCost",
            "gavel_ftf = policies.gavel.policies:GavelFinishTimeFairness",
            "gavel_hierarchical = policies.gavel.policies:GavelHierarchical",
            "gavel_las = policies.gavel.policies:GavelLas",
            "gavel_makespan = policies.gavel.policies:GavelMakespan",
            "gavel_sjf = policies.gavel.policies:GavelShortestFirst",
            "gavel_fcfs = policies.gavel.policies:GavelFirstCome",
            "gavel_throughput = policies.gavel.policies:GavelThroughput",
            "gavel_fifo = policies.baselines.gavel_fifo:GavelFifo",
            "isolated = policies.baselines.isolated:Isolated",
            "las = policies.baselines.las:Las",
            "max_sum_throughput = policies.baselines.max_sum_throughput:MaxSumThroughput",
            "pollux = policies.pollux.policy:Pollux",
            "optimus = policies.baselines.optimus:Optimus",
            "slaq = policies.baselines.slaq:Slaq",
            "shockwave = policies.shockwave.policy:Shockwave",
            "slurm = policies.baselines.slurm:Slurm",
            "srsf = policies.baselines.srsf:Srsf",
            "srtf = policies.baselines.srtf:Srtf",
            "themis = policies.themis.policy:Themis",
        ],
    },
)
