"""Executes a plan's actions, in order; the first failure ends the round and the next one plans anew."""

import logging
from collections.abc import Iterable

from octavo_api.deployment import FINALIZER
from octavo_operator.actions import (
    Action,
    Apply,
    CreateSecret,
    Delete,
    PatchCluster,
    PatchService,
    PutApplication,
    RemoveApplication,
    SetFinalizer,
)
from octavo_operator.kube import Kube
from octavo_operator.observe import ray_token
from octavo_operator.observed import Resource
from octavo_operator.serve import ServeClient

_log = logging.getLogger(__name__)


async def act(kube: Kube, serve: ServeClient, resource: Resource, actions: Iterable[Action]) -> Resource | None:
    """Returns the resource as it is then, None where its last finalizer went. Raises a ``KubeError`` or ``ServeError``.

    Tokens and secrets are read where they are used; what is logged names objects only.
    """
    for action in actions:
        _log.info("%s", describe(action), extra={"deployment": str(resource.key)})
        updated = await _execute(kube, serve, resource, action)
        if updated is None:
            return None
        resource = updated
    return resource


def describe(action: Action) -> str:
    """Says in a few words what is done; never with a document's contents."""
    match action:
        case Apply(document) | CreateSecret(document):
            verb = "apply" if isinstance(action, Apply) else "create"
            return f"{verb} {document.get('kind')} {document['metadata']['name']}"
        case Delete(kind=kind, name=name):
            return f"delete {kind} {name}"
        case PatchCluster(name=name, operations=operations) | PatchService(name=name, operations=operations):
            kind = "RayCluster" if isinstance(action, PatchCluster) else "Service"
            return f"patch {kind} {name}: {', '.join(str(operation.get('path')) for operation in operations)}"
        case PutApplication(address=address, application=application):
            return f"put application {application['name']} at {address}"
        case RemoveApplication(address=address, name=name):
            return f"remove application {name} at {address}"
        case SetFinalizer(present=present):
            return f"{'add' if present else 'remove'} finalizer"


async def _execute(kube: Kube, serve: ServeClient, resource: Resource, action: Action) -> Resource | None:
    namespace = resource.key.namespace
    match action:
        case Apply(document):
            await kube.apply(namespace, document)
        case CreateSecret(document, keys):
            await kube.create_secret(namespace, document, keys)
        case Delete():
            await kube.delete(namespace, action)
        case PatchCluster():
            await kube.patch_cluster(namespace, action)
        case PatchService():
            await kube.patch_service(namespace, action)
        case PutApplication(address, application, proxy_location):
            options = {"proxy_location": proxy_location} if proxy_location is not None else {}
            await serve.put(address, await ray_token(kube, resource), application, options)
        case RemoveApplication(address, name):
            await serve.remove(address, await ray_token(kube, resource), name, str(resource.key))
        case SetFinalizer(present):
            return await kube.set_finalizer(resource, FINALIZER, present=present)
    return resource
