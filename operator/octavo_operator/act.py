"""Execution of a plan's actions, in order. The first failure ends the round; the next round plans again."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from octavo_api.resource.deployment import FINALIZER
from octavo_operator.kube.client import Kube
from octavo_operator.kube.ray_tokens import RayTokens
from octavo_operator.model.actions import (
    Action,
    Apply,
    CreateSecret,
    Delete,
    DeployApplication,
    Event,
    PatchCluster,
    PatchService,
    RemoveApplication,
    SetFinalizer,
)
from octavo_operator.model.observed import Resource
from octavo_operator.serve.client import ServeClient
from octavo_operator.serve.errors import ServeError

_log = logging.getLogger(__name__)

FINAL_ATTEMPT_S = 10.0
"""Maximum seconds of a removal whose failure is tolerated."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Executor of a plan's actions. It reads tokens and secrets at each use. Its log lines only name objects."""

    kube: Kube
    serve: ServeClient
    tokens: RayTokens

    async def act(self, resource: Resource, actions: Iterable[Action]) -> tuple[Resource | None, tuple[Event, ...]]:
        """Execute ``actions``; return the updated resource and the events of tolerated failures.

        The resource is None if it is gone with its last finalizer. Only a ``RemoveApplication`` with
        ``event_on_failure`` may fail without ending the round; its event is then returned. Other failures raise a
        ``KubeError`` or ``ServeError``.
        """
        events: list[Event] = []
        for action in actions:
            _log.info("%s", describe(action), extra={"deployment": str(resource.key)})
            match action:
                case SetFinalizer(present):
                    updated = await self.kube.set_finalizer(resource, FINALIZER, present=present)
                    if updated is None:
                        return None, tuple(events)
                    resource = updated
                case RemoveApplication(event_on_failure=Event() as event):
                    if not await self._try_once(resource, action):
                        events.append(event)
                case _:
                    await self._execute(resource, action)
        return resource, tuple(events)

    async def _try_once(self, resource: Resource, action: Action) -> bool:
        try:
            async with asyncio.timeout(FINAL_ATTEMPT_S):
                await self._execute(resource, action)
        except (ServeError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            _log.warning("%s: %s", describe(action), reason, extra={"deployment": str(resource.key)})
            return False
        return True

    async def _execute(self, resource: Resource, action: Action) -> None:
        namespace = resource.key.namespace
        match action:
            case Apply(document, uid):
                await self.kube.apply(namespace, document, uid)
            case CreateSecret(document, keys):
                await self.kube.create_secret(namespace, document, keys)
            case Delete():
                await self.kube.delete(namespace, action)
            case PatchCluster():
                await self.kube.patch_cluster(namespace, action)
            case PatchService():
                await self.kube.patch_service(namespace, action)
            case DeployApplication(address, application, proxy_location):
                options = {"proxy_location": proxy_location} if proxy_location is not None else {}
                await self.serve.deploy(address, await self.tokens.token_for(resource), application, options)
            case RemoveApplication(address, name):
                await self.serve.remove(address, await self.tokens.token_for(resource), name, str(resource.key))


def describe(action: Action) -> str:
    """Describe an action in a few words, never with a document's contents."""
    match action:
        case Apply(document=document) | CreateSecret(document=document):
            verb = "apply" if isinstance(action, Apply) else "create"
            return f"{verb} {document.get('kind')} {document['metadata']['name']}"
        case Delete(kind=kind, name=name):
            return f"delete {kind} {name}"
        case PatchCluster(name=name, operations=operations) | PatchService(name=name, operations=operations):
            kind = "RayCluster" if isinstance(action, PatchCluster) else "Service"
            return f"patch {kind} {name}: {', '.join(str(operation.get('path')) for operation in operations)}"
        case DeployApplication(address=address, application=application):
            return f"deploy application {application['name']} at {address}"
        case RemoveApplication(address=address, name=name):
            return f"remove application {name} at {address}"
        case SetFinalizer(present=present):
            return f"{'add' if present else 'remove'} finalizer"
