"""`metasched notify`."""

from __future__ import annotations

import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metasched.cli.paths import CommandPaths

if TYPE_CHECKING:
    from metasched.notify.rules import Destination

_POLL_SECONDS = 2.0


@click.command("notify", short_help="Send messages about recorded events.")
@click.option(
    "--rules",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The file of destinations [default: notify.toml beside the configuration].",
)
@click.option("--check", is_flag=True, help="Check the file, with its templates, print its destinations, and end.")
@click.option("--test", metavar="NAME", help="Send one invented message to this destination, and end.")
@click.pass_obj
def command(command_paths: CommandPaths, *, rules: Path | None, check: bool, test: str | None) -> None:
    """Follow the daemon's events until SIGTERM, and send messages: to webhooks, to Slack, by mail and otherwise."""
    from metasched.configuration.config import load  # noqa: PLC0415  `--help` needs none of this
    from metasched.configuration.file_names import DATABASE  # noqa: PLC0415
    from metasched.configuration.logs import configure_logs  # noqa: PLC0415
    from metasched.notify.channels import check_channels  # noqa: PLC0415
    from metasched.notify.positions import PositionsFile  # noqa: PLC0415
    from metasched.notify.rules import FILE_NAME, load_rules  # noqa: PLC0415
    from metasched.notify.service import NotifyService  # noqa: PLC0415

    found = load_rules(rules or command_paths.config.with_name(FILE_NAME))
    check_channels(found.notify)
    if check:
        for destination in found.notify:
            click.echo(f"{destination.name}: {', '.join(destination.kinds)}")
        return
    if test is not None:
        _send_test(found.notify, test)
        return
    config = load(command_paths.config, None)
    configure_logs(config.log)
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    while not ending.is_set():
        if not _is_here(config.paths.shared):
            ending.wait(_POLL_SECONDS)
            continue
        file = PositionsFile(found.state or config.paths.shared / "notify")
        try:
            service = NotifyService(config.paths.state / DATABASE, found.notify, file)
            service.run(lambda: not ending.wait(_POLL_SECONDS) and _is_here(config.paths.shared))
        finally:
            file.close()


def _is_here(shared: Path) -> bool:
    """Whether the active daemon is on this host; where that is not known, it is taken to be."""
    from metasched.shared_dir.published_status import active_host  # noqa: PLC0415

    return active_host(shared) in {None, socket.gethostname()}


def _send_test(destinations: tuple[Destination, ...], name: str) -> None:
    from metasched.notify.channels import deliver  # noqa: PLC0415
    from metasched.notify.messages import make_message  # noqa: PLC0415
    from metasched.store import EventRecord, JobEventRecord  # noqa: PLC0415

    destination = next((one for one in destinations if one.name == name), None)
    if destination is None:
        known = ", ".join(one.name for one in destinations)
        raise click.UsageError(f"--test {name}: there is no such destination; there are: {known}")
    now = time.time()
    event = EventRecord(0, now, "0" * 16, "finished", "a message of `metasched notify --test`; no job has ended")
    user = Path.home().name if destination.per_user else "nobody"
    deliver(destination, make_message(destination, user, [JobEventRecord(event, "0", "test", user, "", "TEST")], now))
    click.echo(f"{name} has taken the message")
