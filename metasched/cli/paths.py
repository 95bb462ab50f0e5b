"""Paths of the configuration, the shared directory and the state directory."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from metasched.core.errors import MetaschedError

DEFAULT_CONFIG = Path("/etc/metasched/metasched.toml")

_Command = TypeVar("_Command", bound=Any)


class NoDirectoryError(MetaschedError):
    """No option, variable or configuration names the directory."""

    def __init__(self, key: str, config: Path, why: str) -> None:
        super().__init__(f"{config}: {why}; pass --{key} DIR, or a configuration with [paths] {key} by --config FILE")


@dataclass(frozen=True, slots=True)
class CommandPaths:
    """Paths as the command line gives them; ``given`` is --config."""

    given: Path | None = None

    @property
    def config(self) -> Path:
        """Path of the configuration file."""
        return self.given or Path(os.environ.get("METASCHED_CONFIG") or DEFAULT_CONFIG)

    def shared(self, given: Path | None) -> Path:
        """Path of the shared directory: ``given``, else of --config, $METASCHED_SHARED, or the default configuration.

        Raises:
            NoDirectoryError: none of them names it.
        """
        if given is None and self.given is None and (variable := os.environ.get("METASCHED_SHARED")):
            return Path(variable)
        return given or self._path("shared")

    def state(self, given: Path | None = None) -> Path:
        """Path of the state directory: ``given``, else that of the configuration.

        Raises:
            NoDirectoryError: neither names it.
        """
        return given or self._path("state")

    def _path(self, key: str) -> Path:
        """A path of section [paths], read without the checks (and the imports) that the daemon needs."""
        try:
            with self.config.open("rb") as file:
                value: object = tomllib.load(file)["paths"][key]
        except OSError as error:
            raise NoDirectoryError(key, self.config, f"cannot be read ({error.strerror})") from None
        except (ValueError, RecursionError) as error:
            raise NoDirectoryError(key, self.config, f"is not TOML ({error})") from None
        except (KeyError, TypeError):
            raise NoDirectoryError(key, self.config, f"has no [paths] {key}") from None
        if not isinstance(value, str):
            raise NoDirectoryError(key, self.config, f"[paths] {key} is not a string")
        return Path(value)


def shared_option(command: _Command) -> _Command:
    """Decorator that adds the option --shared."""
    option = click.option(
        "--shared",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Shared directory [default: that of --config, else $METASCHED_SHARED, else that of the default --config].",
    )
    decorated: _Command = option(command)
    return decorated


def state_option(command: _Command) -> _Command:
    """Decorator that adds the option --state."""
    option = click.option(
        "--state",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="The daemon's state directory [default: that of the configuration].",
    )
    decorated: _Command = option(command)
    return decorated
