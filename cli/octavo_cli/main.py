"""The ``octavo`` command. A subcommand's module is imported when it runs or prints its help."""

import importlib
import sys

import click

from octavo_api.errors import StartupError

_COMMANDS = {
    "up": "Serve a model on this machine.",
    "chat": "Talk to a running endpoint.",
    "operator": "Run the Kubernetes operator.",
    "version": "Print the version.",
}


class LazyGroup(click.Group):
    """Group that imports ``octavo_cli.NAME.command`` on demand. The list of commands needs no import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"octavo_cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Octavo serves large language models."""


def main() -> None:
    """Run the command. A ``StartupError`` becomes one message on stderr and exit status 1."""
    try:
        group(prog_name="octavo")
    except StartupError as error:
        click.secho("Error: ", fg="red", err=True, nl=False)
        click.echo(error.message, err=True)
        sys.exit(1)
