"""Deployments of the fake API server, and how the operator of these tests is set up."""

import base64

from octavo_operator.model.actions import Plan
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.observed import Key
from octavo_testing.operator.fakes.contract_kube import deployment

KEY = Key("default", "books")
DEFAULTS = Defaults(image="octavo:1", ray_version="2.60.0")


def external(api_server, address, name="books", **spec):
    document = deployment("default", name)
    document["spec"] |= {"rayCluster": {"external": {"dashboardURL": address}}, **spec}
    return api_server.api.create("user", document)


def stored(api_server, name="books"):
    return api_server.api.get("ServingDeployment", "default", name)


def secret(api_server, name, **values):
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    metadata = {"namespace": "default", "name": name}
    api_server.api.create("user", {"kind": "Secret", "apiVersion": "v1", "metadata": metadata, "data": data})


def steady(*actions, status=None, events=(), delay=30.0) -> Plan:
    return Plan(tuple(actions), status or {"observedGeneration": 1}, tuple(events), delay)
