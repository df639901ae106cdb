"""``octavo version``."""

from importlib.metadata import version

import click


@click.command(name="version", help="Print the version.")
def command() -> None:
    click.echo(f"octavo {version('octavo')}")
