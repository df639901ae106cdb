"""``octavo operator``: runs the operator in this process, with the options of ``python -m octavo_operator.main``."""

import click

from octavo_operator.main import main


@click.command(
    "operator",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.pass_context
def command(context: click.Context) -> None:
    """Run the Kubernetes operator."""
    main(context.args)
