"""`metasched web`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from metasched.cli.paths import CommandPaths


@click.command("web", short_help="Show the cluster on a web page.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="For developers: an address of this host alone, such as 127.0.0.1:8080, in place of the Unix socket.",
)
@click.option(
    "--viewer", metavar="NAME", help="For developers, with --listen: the user as whom everybody sees the page."
)
@click.pass_obj
def command(command_paths: CommandPaths, *, listen: str | None, viewer: str | None) -> None:
    """Show the cluster on a web page until SIGTERM. It only reads, and the site's proxy says who looks."""
    if (listen is None) != (viewer is None):
        raise click.UsageError("--listen and --viewer go together: over TCP nobody is believed to be a user")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from metasched.configuration.config import load  # noqa: PLC0415  `--help` needs none of this
    from metasched.configuration.logs import configure_logs  # noqa: PLC0415
    from metasched.web.application import create_application  # noqa: PLC0415
    from metasched.web.server import loopback_socket, serve, unix_socket  # noqa: PLC0415
    from metasched.web.settings import settings_of  # noqa: PLC0415

    config = load(command_paths.config, None)
    configure_logs(config.log)
    application = create_application(settings_of(config, over_socket=listen is None, viewer=viewer))
    if listen is None:
        listener = unix_socket(Path(config.web.socket), int(config.web.socket_mode, 8), config.web.socket_group)
    else:
        listener = loopback_socket(listen)
        click.echo(f"The page is at {_address(listener.getsockname())}, and shows what {viewer} may see.", err=True)
    serve(application, listener, root_path=config.web.root_path, peers=config.web.proxy_users)


def _address(name: tuple[str, int]) -> str:
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}/"
