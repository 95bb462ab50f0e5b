"""Where the files are: the configuration, and from it the shared and the state directory."""

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
    """Nothing says which directory is meant."""

    def __init__(self, key: str, config: Path, why: str) -> None:
        super().__init__(f"{config}: {why}; pass --{key} DIR, or a configuration with [paths] {key} by --config FILE")


@dataclass(frozen=True, slots=True)
class Places:
    """What the command line says about files; ``given`` is --config."""

    given: Path | None = None

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.given or Path(os.environ.get("METASCHED_CONFIG") or DEFAULT_CONFIG)

    def shared(self, given: Path | None) -> Path:
        """The shared directory: ``given``, else that of --config, of $METASCHED_SHARED, of the default configuration.

        Raises:
            NoDirectoryError: none of them says.
        """
        if given is None and self.given is None and (variable := os.environ.get("METASCHED_SHARED")):
            return Path(variable)
        return given or self._path("shared")

    def state(self, given: Path | None = None) -> Path:
        """The state directory: ``given``, else that of the configuration.

        Raises:
            NoDirectoryError: neither says.
        """
        return given or self._path("state")

    def _path(self, key: str) -> Path:
        """One of [paths], read without the checks (and the imports) that the daemon needs."""
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
    """--shared."""
    option = click.option(
        "--shared",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Shared directory [default: that of --config, else $METASCHED_SHARED, else that of the default --config].",
    )
    decorated: _Command = option(command)
    return decorated


def state_option(command: _Command) -> _Command:
    """--state."""
    option = click.option(
        "--state",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="The daemon's state directory [default: that of the configuration].",
    )
    decorated: _Command = option(command)
    return decorated
