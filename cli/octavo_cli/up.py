"""``octavo up``: one model, an endpoint on this machine, until Ctrl-C."""

import time
from pathlib import Path

import click

from octavo_cli.display import Display
from octavo_cli.document import Flags, read_deployment
from octavo_cli.fit import fit
from octavo_cli.machine import available_cpus
from octavo_cli.preflight import check


@click.command(name="up", help="Serve MODEL on this machine: hf://ORGANISATION/NAME, a folder or a .gguf file. "
               "The default is the embedded SmolLM2-135M-Instruct.")  # fmt: skip
@click.argument("model", required=False)
@click.option("-f", "--file", type=click.Path(path_type=Path), help="A ServingDeployment document (YAML).")
@click.option("--replicas", type=click.IntRange(min=1), help="Engine replicas. [default: 1]")
@click.option("--port", "http_port", type=click.IntRange(1, 65535), help="HTTP port. [default: 8000]")
@click.option("--grpc-port", type=click.IntRange(1, 65535), help="gRPC port. [default: 9000]")
@click.option("--served-name", help="Name of the model in requests.")
@click.option("--set", "settings", multiple=True, metavar="SECTION.NAME=VALUE", help="An engine or router setting. "
              "Repeat it for several settings.")  # fmt: skip
@click.option("--api-key-file", type=click.Path(path_type=Path), help="File of API keys, a line NAME KEY for each. "
              "Without it, every user of this machine has access.")  # fmt: skip
def command(
    model: str | None,
    file: Path | None,
    replicas: int | None,
    http_port: int | None,
    grpc_port: int | None,
    served_name: str | None,
    settings: tuple[str, ...],
    api_key_file: Path | None,
) -> None:
    began = time.monotonic()
    deployment = read_deployment(Flags(model, file, replicas, http_port, grpc_port, served_name, settings))
    display, cpus = Display(), available_cpus()
    deployment, unused = fit(deployment, has_keys=api_key_file is not None)
    for line in unused:
        display.print(line)
    with display.stage(f"Model {deployment.spec.model.uri}"):
        check(deployment, api_key_file, cpus)
    with display.stage("Imports"):
        from octavo_cli.local_service import LocalService

    LocalService(deployment, api_key_file, cpus, display).run(began)
