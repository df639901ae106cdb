"""Desired application of a deployment: its configuration, its Ray, and the resources and files of its replicas."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from octavo_api.resource.deployment import ServingDeployment
from octavo_api.resource.serve_config import ENGINE, HEALTH_CHECK_TIMEOUT_S, Bind, Placement, application
from octavo_operator.model import names
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.observed import Application, Key

ENGINE_CPUS, GATEWAY_CPUS, HEAD_CPUS = 2.0, 1.0, 1.0
GIBIBYTE = 2**30
ENGINE_MEMORY, GATEWAY_MEMORY, HEAD_MEMORY = 4 * GIBIBYTE, GIBIBYTE, 2 * GIBIBYTE
"""Memory of one pod in bytes, if the spec sets none."""

INITIAL_REPLICAS = "initial_replicas"
"""Key in ``autoscaling_config``."""
HEALTH_CHECK_TIMEOUT = "health_check_timeout_s"
"""Option of a Serve deployment."""
HEALTH_CHECK_TIMEOUTS_S = (HEALTH_CHECK_TIMEOUT_S, HEALTH_CHECK_TIMEOUT_S + 1)
"""Our two values for it. They alternate only to make Serve retry: see ``with_retry``."""
TLS_FOLDER = f"{names.SECRETS_FOLDER}/tls"
API_KEYS_FOLDER = f"{names.SECRETS_FOLDER}/api-keys"
TOKEN_FOLDER = f"{names.SECRETS_FOLDER}/hugging-face"


class Mode(StrEnum):
    MANAGED = "Managed"
    EXTERNAL = "External"
    LOCAL = "Local"


@dataclass(frozen=True, slots=True)
class DesiredApplication:
    """The application that Serve must run for one deployment."""

    mode: Mode
    config: Mapping[str, Any]
    """Configuration of the application, as Serve receives it."""
    address: str = ""
    """Address of the dashboard. It is empty in managed mode, which has one dashboard per cluster."""
    proxy_location: str | None = None
    """Location of Serve's own proxies, None to leave it to Serve."""

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def owner(self) -> str:
        return str(self.config["args"]["owner"])


def desired_application(key: Key, deployment: ServingDeployment, defaults: Defaults) -> DesiredApplication:
    if defaults.local is not None:
        config = application(deployment, defaults.local.placement)
        return DesiredApplication(Mode.LOCAL, config, defaults.local.address)
    if deployment.external is not None:
        config = application(deployment, _external(key, deployment))
        return DesiredApplication(Mode.EXTERNAL, config, address_of(deployment.external.dashboard_url))
    # Gateways listen themselves; Serve's own proxies would be a second, slower listener on each node.
    return DesiredApplication(
        Mode.MANAGED, application(deployment, _managed(key, deployment)), proxy_location="Disabled"
    )


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
    """Replicas that the operator requests from Serve for one Serve deployment."""

    minimum: int
    maximum: int
    surge: int
    """Replicas that may run beside the maximum during a roll."""


def counts(config: Mapping[str, Any], deployment: str) -> Counts:
    """Read the counts from the application, so that pods can never differ from the request to Serve."""
    (options,) = (item for item in config["deployments"] if item["name"] == deployment)
    scaling = options["autoscaling_config"]
    maximum = int(scaling["max_replicas"])
    percent = int(options.get("max_surge_percent") or 0)
    return Counts(int(scaling["min_replicas"]), maximum, math.ceil(maximum * percent / 100))


def with_initial_engines(desired: DesiredApplication, engines: int) -> DesiredApplication:
    """Return ``desired`` with ``engines`` as the initial number of engines, if load decides their number.

    By itself an application starts with the fewest. Serve reads the number once, when the application is new.
    """
    config = copy.deepcopy(dict(desired.config))
    (options,) = (item for item in config["deployments"] if item["name"] == ENGINE)
    scaling = options["autoscaling_config"]
    scaling[INITIAL_REPLICAS] = min(max(engines, scaling["min_replicas"]), scaling["max_replicas"])
    return replace(desired, config=config)


def with_retry(desired: DesiredApplication, deployed: Application) -> DesiredApplication:
    """Return ``desired`` so that Serve retries the deployments of ``deployed`` that it has given up.

    Serve resets its count of failed starts only for another version of a deployment. Counts of replicas make no new
    version. Another timeout of the health check makes one. It is the only part of a version whose change neither
    replaces replicas nor calls them.
    """
    before = {item["name"]: item.get(HEALTH_CHECK_TIMEOUT) for item in (deployed.config or {}).get("deployments") or ()}
    config = copy.deepcopy(dict(desired.config))
    for options in config["deployments"]:
        found = deployed.deployments.get(options["name"])
        if found is not None and found.status == "DEPLOY_FAILED":
            first, second = HEALTH_CHECK_TIMEOUTS_S
            options[HEALTH_CHECK_TIMEOUT] = second if before.get(options["name"]) == first else first
    return replace(desired, config=config)
