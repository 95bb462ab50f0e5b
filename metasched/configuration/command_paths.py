"""Paths that commands and the Python API need: the configuration, the shared directory and the state directory."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from metasched.core.errors import MetaschedError

DEFAULT_CONFIG = Path("/etc/metasched/metasched.toml")


class NoDirectoryError(MetaschedError):
    """No caller, variable or configuration names the directory."""

    def __init__(self, key: str, config: Path, why: str) -> None:
        super().__init__(
            f"{config}: {why}; pass --{key} DIR (in Python {key}=DIR), "
            f"or a configuration with [paths] {key} by --config FILE (config=FILE)"
        )


@dataclass(frozen=True, slots=True)
class CommandPaths:
    """Paths that the caller gives, of the environment and of the configuration; ``given`` is the caller's --config."""

    given: Path | None = None

    @property
    def config(self) -> Path:
        """The path of the configuration file."""
        return self.given or Path(os.environ.get("METASCHED_CONFIG") or DEFAULT_CONFIG)

    def shared(self, given: Path | None) -> Path:
        """Return ``given``, or the shared directory of --config, of $METASCHED_SHARED, or of the default configuration.

        Raises:
            NoDirectoryError: none of them names the shared directory.
        """
        if given is None and self.given is None and (variable := os.environ.get("METASCHED_SHARED")):
            return Path(variable)
        return given or self._path("shared")

    def state(self, given: Path | None = None) -> Path:
        """Return ``given``, or the state directory of the configuration.

        Raises:
            NoDirectoryError: neither names the state directory.
        """
        return given or self._path("state")

    def _path(self, key: str) -> Path:
        """Read a path of section [paths] without the checks (and the imports) of the whole configuration."""
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
