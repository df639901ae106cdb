"""Place of a deployment: its application's name and owner, its Ray's address, and its replicas' resources and files."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from octavo_api.deployment import ServingDeployment
from octavo_api.serve_config import ENGINE, HEALTH_CHECK_TIMEOUT_S, Bind, Placement, application
from octavo_operator.model import names
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.observed import Application, Key

ENGINE_CPUS, GATEWAY_CPUS, HEAD_CPUS = 2.0, 1.0, 1.0
GIBIBYTE = 2**30
ENGINE_MEMORY, GATEWAY_MEMORY, HEAD_MEMORY = 4 * GIBIBYTE, GIBIBYTE, 2 * GIBIBYTE
"""Memory of one pod in bytes, if the spec sets none."""

INITIAL_REPLICAS = "initial_replicas"
"""Key in ``autoscaling_config``."""
PATIENCE, PATIENCES = "health_check_timeout_s", (HEALTH_CHECK_TIMEOUT_S, HEALTH_CHECK_TIMEOUT_S + 1)
"""Option of a Serve deployment, and our values for it. They alternate only to make Serve retry."""
TLS_FOLDER = f"{names.SECRETS_FOLDER}/tls"
API_KEYS_FOLDER = f"{names.SECRETS_FOLDER}/api-keys"
TOKEN_FOLDER = f"{names.SECRETS_FOLDER}/hugging-face"


class Mode(StrEnum):
    MANAGED = "Managed"
    EXTERNAL = "External"
    LOCAL = "Local"


@dataclass(frozen=True, slots=True)
class Place:
    """Place of one deployment. ``application`` is the configuration that Serve must run.

    ``address`` is the dashboard's. It is empty in managed mode, which has one dashboard per cluster.
    """

    mode: Mode
    application: Mapping[str, Any]
    address: str = ""
    proxy_location: str | None = None

    @property
    def name(self) -> str:
        return str(self.application["name"])

    @property
    def owner(self) -> str:
        return str(self.application["args"]["owner"])


def place(key: Key, deployment: ServingDeployment, defaults: Defaults) -> Place:
    if defaults.local is not None:
        wanted = application(deployment, defaults.local.placement)
        return Place(Mode.LOCAL, wanted, defaults.local.address)
    if deployment.external is not None:
        wanted = application(deployment, _external(key, deployment))
        return Place(Mode.EXTERNAL, wanted, address_of(deployment.external.dashboard_url))
    # Gateways listen themselves; Serve's own proxies would be a second, slower door on each node.
    return Place(Mode.MANAGED, application(deployment, _managed(key, deployment)), proxy_location="Disabled")


def address_of(dashboard_url: str) -> str:
    return dashboard_url.rstrip("/")


def _managed(key: Key, deployment: ServingDeployment) -> Placement:
    endpoint = deployment.spec.endpoint
    return Placement(
        name=key.name,
        owner=str(key),
        bind=Bind.NODE,
        http_port=endpoint.http.port,
        grpc_port=endpoint.grpc.port,
        engine_cpus=deployment.spec.resources.limits.cpu or ENGINE_CPUS,
        gateway_cpus=deployment.spec.router.resources.limits.cpu or GATEWAY_CPUS,
        engine_resources={names.ENGINE_RESOURCE: 1},
        gateway_resources={names.GATEWAY_RESOURCE: 1},
        tls_folder=TLS_FOLDER if endpoint.tls_secret_ref else None,
        api_key_file=f"{API_KEYS_FOLDER}/keys" if endpoint.api_key_secret_ref else None,
    )


def _external(key: Key, deployment: ServingDeployment) -> Placement:
    return Placement(
        name=names.external_application(key),
        owner=str(key),
        bind=Bind.NODE,
        http_port=0,
        grpc_port=0,
        engine_cpus=deployment.spec.resources.limits.cpu or ENGINE_CPUS,
        gateway_cpus=deployment.spec.router.resources.limits.cpu or GATEWAY_CPUS,
        route_prefix=f"/{key.namespace}/{key.name}",
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """Replicas that Serve is asked for, of one Serve deployment. ``surge`` more may run during a roll."""

    least: int
    most: int
    surge: int


def counts(wanted: Mapping[str, Any], deployment: str) -> Counts:
    """Read the counts from the application, so that pods can never differ from the request to Serve."""
    (options,) = (item for item in wanted["deployments"] if item["name"] == deployment)
    scaling = options["autoscaling_config"]
    most = int(scaling["max_replicas"])
    percent = int(options.get("max_surge_percent") or 0)
    return Counts(int(scaling["min_replicas"]), most, math.ceil(most * percent / 100))


def starting_with(place: Place, engines: int) -> Place:
    """Return ``place`` with ``engines`` as the initial number of engines, if load decides their number.

    By itself an application starts with the fewest. Serve reads the number once, when the application is new.
    """
    application = copy.deepcopy(dict(place.application))
    (options,) = (item for item in application["deployments"] if item["name"] == ENGINE)
    scaling = options["autoscaling_config"]
    scaling[INITIAL_REPLICAS] = min(max(engines, scaling["min_replicas"]), scaling["max_replicas"])
    return replace(place, application=application)


def begun_again(place: Place, deployed: Application) -> Place:
    """Return ``place`` so that Serve retries the deployments of ``deployed`` that it has given up.

    Serve resets its count of failed starts only for another version of a deployment. Counts of replicas make no new
    version. The patience of its health check makes one. It is the only part of a version that neither replaces replicas
    nor calls them.
    """
    before = {item["name"]: item.get(PATIENCE) for item in (deployed.config or {}).get("deployments") or ()}
    application = copy.deepcopy(dict(place.application))
    for options in application["deployments"]:
        found = deployed.deployments.get(options["name"])
        if found is not None and found.status == "DEPLOY_FAILED":
            options[PATIENCE] = PATIENCES[before.get(options["name"]) == PATIENCES[0]]
    return replace(place, application=application)
