"""The resource definition accepts each status that the operator writes."""

from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from octavo_api.resource.deployment import ServingDeployment
from octavo_api.resource.status import LIMIT, Status
from octavo_api.schema import crd, reference
from octavo_operator.model import desired, spec_hash
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.observed import (
    Application,
    Cluster,
    Deployment,
    Key,
    Observed,
    Reach,
    Replica,
    Resource,
    ServeState,
)
from octavo_operator.plan import plan

KEY = Key("team", "chat")
NOW = 1_800_000_000.0
DEFAULTS = Defaults(image="octavo:1", ray_version="2.60.0")
SCHEMA = jsonschema.Draft202012Validator(reference.plain(crd.schema()["properties"]["status"]))
EXTERNAL = {"rayCluster": {"external": {"dashboardURL": "http://ray:8265"}}}
ENDLESS = "Traceback: " + "x" * 100_000
"""A message as long as Serve's. The operator's messages are short, and KubeRay's fit into its own conditions."""


def resource(**spec: Any) -> Resource:
    document = {
        "apiVersion": crd.API_VERSION,
        "kind": crd.KIND,
        "metadata": {"name": KEY.name, "namespace": KEY.namespace},
        "spec": {"model": {"uri": "embedded://smollm2"}, **spec},
    }
    return Resource(KEY, "uid", 7, "1", NOW, None, (), {}, document, {})


def serve(
    deployment: ServingDeployment, address: str, status: str, message: str = "", *, ours: bool = True
) -> ServeState:
    config = dict(desired.desired_application(KEY, deployment, DEFAULTS).config)
    if not ours:
        config["args"] = {"owner": "somebody/else"}
    replicas = tuple(Replica(f"r{i}", state) for i, state in enumerate(("RUNNING", "STARTING", "STOPPING")))
    deployments = {name: Deployment(name, "UPDATING", 2, replicas, message) for name in ("Engine", "Gateway")}
    application = Application(config["name"], status, message, config, deployments)
    doors = ("http://ray:4000", "grpc://ray:4001")
    return ServeState(address, Reach.OK, message, "2.60.0", {application.name: application}, "http://ray:8000", doors)


def situations() -> dict[str, tuple[Resource, Observed]]:
    managed, external = resource(), resource(**EXTERNAL)
    read = {name: ServingDeployment.read(item.document) for name, item in (("m", managed), ("e", external))}
    mark = spec_hash.spec_hash(read["m"])
    cluster = Cluster(f"chat-{mark[:8]}", "u", mark, NOW, False, True, "", "octavo:1", {"metadata": {}, "spec": {}})
    old = replace(cluster, name="chat-old", spec_hash="0" * 16)
    failing = replace(cluster, head_ready=False, message="x" * 30_000)
    inside, outside = DEFAULTS.dashboard_of(KEY, cluster.name), "http://ray:8265"
    found = {
        "nothing yet": (managed, Observed()),
        "no KubeRay": (managed, Observed(kuberay_installed=False)),
        "a head that does not start": (managed, Observed(clusters=(failing,))),
        "one cluster after the other": (managed, Observed(clusters=(cluster, old))),
        "a Secret is missing": (managed, Observed(missing_secrets=("s/k",))),
        "an invalid spec": (resource(replicas="many"), Observed()),
        "suspended": (resource(suspend=True), Observed(clusters=(cluster,))),
        "unreachable": (
            external,
            Observed(serve={outside: ServeState(outside, Reach.UNREACHABLE, "no answer in 5 s")}),
        ),
        "refused": (external, Observed(serve={outside: ServeState(outside, Reach.AUTH_FAILED, "no")})),
        "incompatible": (external, Observed(serve={outside: ServeState(outside, Reach.INCOMPATIBLE, "Ray 2.9.0")})),
        "a foreign application": (
            external,
            Observed(serve={outside: serve(read["e"], outside, "RUNNING", ours=False)}),
        ),
    }
    for status in ("NOT_STARTED", "DEPLOYING", "DEPLOY_FAILED", "RUNNING", "UNHEALTHY", "DELETING"):
        inner = {inside: serve(read["m"], inside, status, ENDLESS)}
        found[f"managed {status}"] = (managed, Observed(clusters=(cluster,), serve=inner, ready_gateways=1))
        found[f"external {status}"] = (external, Observed(serve={outside: serve(read["e"], outside, status, ENDLESS)}))
    return found


@pytest.mark.parametrize("situation", situations())
def test_a_status_fits_the_definition(situation: str) -> None:
    asked, observed = situations()[situation]
    for step in range(4):
        made = plan(asked, observed, NOW + 3000 * step, DEFAULTS)
        SCHEMA.validate(made.status)
        Status.model_validate(made.status)
        assert made.status["observedGeneration"] == 7
        assert made.status["conditions"]
        assert all(len(application["message"]) <= LIMIT for application in made.status.get("applications", ()))
        asked = replace(asked, status=made.status)
    assert made.status == plan(asked, observed, NOW + 9000, DEFAULTS).status
