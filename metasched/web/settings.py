"""What the web page is told at its start, by the configuration and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metasched.configuration.config import Config
from metasched.configuration.file_names import DATABASE
from metasched.simulator.live_settings import live_settings


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Paths, identities and addresses of one web page.

    Attributes:
        shared: the shared directory, with the published status.
        database: the daemon's database.
        user_header: HTTP header in which the site's proxy names the user.
        trusts_header: whether the header is believed: true behind the Unix socket alone.
        viewer: the user as whom every request is answered, for developers; None to believe the header.
        admins: names of users who see everything.
        admin_groups: Unix groups whose members see everything.
        coordinators: users who coordinate a Slurm account, by account.
        root_path: the path below which the proxy shows the page, such as ``/metasched``; "" for the top.
        frame_ancestors: origins that may show the page in a frame; none by default.
        state: the page's own directory, for the results of what-ifs; None for no what-ifs.
        comparisons: directory with results of `metasched compare`; None for none.
        simulation: how the cluster behaves in what-ifs: arguments of ``metasched.simulator.records.Settings``.
        simulated_jobs: most live jobs of a what-if.
    """

    shared: Path
    database: Path
    user_header: str = "X-Remote-User"
    trusts_header: bool = False
    viewer: str | None = None
    admins: tuple[str, ...] = ()
    admin_groups: tuple[str, ...] = ()
    coordinators: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    root_path: str = ""
    frame_ancestors: tuple[str, ...] = ()
    state: Path | None = None
    comparisons: Path | None = None
    simulation: Mapping[str, Any] = field(default_factory=dict)
    simulated_jobs: int = 500


def settings_of(config: Config, *, over_socket: bool, viewer: str | None = None) -> WebSettings:
    """The settings of a configuration.

    Args:
        config: the configuration file.
        over_socket: whether the page listens on a Unix socket alone, so that the proxy's header can be believed.
        viewer: the user as whom a developer sees the page; None for the user of the header.
    """
    return WebSettings(
        shared=config.paths.shared,
        database=config.paths.state / DATABASE,
        user_header=config.web.user_header,
        trusts_header=over_socket,
        viewer=viewer,
        admins=config.access.admins,
        admin_groups=config.access.admin_groups,
        coordinators=config.web.coordinators,
        root_path=config.web.root_path,
        frame_ancestors=config.web.frame_ancestors,
        state=Path(config.web.state),
        comparisons=Path(config.web.comparisons) if config.web.comparisons else None,
        simulation=live_settings(config.schedule.round_seconds, config.schedule.min_round_seconds),
        simulated_jobs=config.forecast.jobs,
    )
