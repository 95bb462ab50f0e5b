"""Groups of commands that name near misses of a mistyped command."""

from __future__ import annotations

import difflib

import click


class SuggestingGroup(click.Group):
    """Group whose error for an unknown command names the commands that are spelled almost alike."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand that the words name.

        Raises:
            click.UsageError: there is none; the message has the near misses.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=2)
            if not near:
                raise
            message = f"{error.message.rstrip('.')}; did you mean {' or '.join(near)}?"
            raise click.UsageError(message, ctx) from None
