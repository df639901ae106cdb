"""The operator's own observe → plan → act, for one deployment in a Ray on this machine."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from octavo_api.resource.deployment import ServingDeployment
from octavo_api.resource.serve_config import Bind, Placement
from octavo_cli.machine import cpus_per_replica
from octavo_operator.model import memory
from octavo_operator.model.actions import Action, DeployApplication, Event, RemoveApplication
from octavo_operator.model.conditions import Condition, Reason, Type
from octavo_operator.model.defaults import Defaults, Local
from octavo_operator.model.observed import Application, Key, Observed, Resource
from octavo_operator.plan import plan
from octavo_operator.serve.client import ServeClient, ServeTransport
from octavo_operator.serve.details import application_error
from octavo_operator.serve.errors import Refused, ServeError

_ADDRESS = "local"
_OWNER = "local"
_FAILED = (Reason.DEPLOY_FAILED, Reason.UNHEALTHY)
_REPORTED = frozenset({"DriftCorrected", "ServeConfigRestored", "DeployRetried"})


def placement(deployment: ServingDeployment, api_key_file: Path | None, cpus: float) -> Placement:
    """Return the placement of the replicas: on loopback, all on these ``cpus``."""
    spec = deployment.spec
    most = spec.replicas if spec.autoscaling is None else spec.autoscaling.max_replicas
    return Placement(
        name=deployment.metadata.name,
        owner=_OWNER,
        bind=Bind.LOOPBACK,
        http_port=spec.endpoint.http.port,
        grpc_port=spec.endpoint.grpc.port,
        engine_cpus=spec.resources.limits.cpu or cpus_per_replica(cpus, most),
        gateway_cpus=0,
        replicas_on_node=max(most, 1),
        surge=False,
        api_key_file=str(api_key_file.resolve()) if api_key_file else None,
    )


@dataclass(frozen=True, slots=True)
class Look:
    """Observation and conclusions of one round."""

    application: Application | None
    conditions: Mapping[str, Condition]
    events: tuple[Event, ...] = ()
    failure: ServeError | None = None

    @property
    def ready(self) -> bool:
        ready = self.conditions.get(Type.READY)
        return ready is not None and ready.state == "True"

    @property
    def stopped(self) -> bool:
        """True if the deployment is suspended and all streams have ended."""
        progressing = self.conditions.get(Type.PROGRESSING)
        return progressing is not None and progressing.reason == Reason.SUSPENDED

    @property
    def hindrance(self) -> str:
        """Reason why the deployment can never become ready. Empty if there is none.

        On one machine, no other component repairs the cause.
        """
        if isinstance(self.failure, Refused):
            return self.failure.message
        found = self.conditions.get(Type.APPLICATION_READY)
        if found is not None and found.reason in _FAILED and self.application is not None:
            # The condition has only one short line of this error.
            return self.application.message or application_error(self.application)
        stalled = self.conditions.get(Type.STALLED)
        return stalled.message if stalled is not None else ""

    @property
    def messages(self) -> tuple[str, ...]:
        """Messages for the person at the terminal."""
        return tuple(event.message for event in self.events if event.type == "Warning" or event.reason in _REPORTED)


class LocalOperator:
    """Operator of one deployment. It stores the resource and its status, as Kubernetes does in a cluster."""

    def __init__(self, deployment: ServingDeployment, where: Placement, transport: ServeTransport) -> None:
        self._defaults = Defaults(image="", ray_version="", local=Local(_ADDRESS, where))
        self._name = where.name
        self._client = ServeClient(lambda address, token: transport, fresh_s=0)
        self._runner = asyncio.Runner()
        document = deployment.model_dump(mode="json", by_alias=True, exclude_unset=True)
        self._resource = Resource(
            key=Key(deployment.metadata.namespace, deployment.metadata.name),
            uid="",
            generation=1,
            resource_version="",
            created_at=time.time(),
            deleted_at=None,
            finalizers=(),
            annotations={},
            document=document,
            status={},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.close()

    def round(self) -> Look:
        """Observe Serve, act on it, and return the observation. Block for a moment."""
        return self._runner.run(self._round())

    def suspend(self) -> None:
        """Suspend the deployment from now on. Running streams may end."""
        document: dict[str, Any] = dict(self._resource.document)
        document["spec"] = {**document["spec"], "suspend": True}
        self._resource = replace(self._resource, generation=self._resource.generation + 1, document=document)

    async def _round(self) -> Look:
        seen = await self._client.fetch(_ADDRESS, None, self._name)
        planned = plan(self._resource, Observed(serve={_ADDRESS: seen}), time.time(), self._defaults)
        application = seen.applications.get(self._name)
        look = Look(application, memory.read_status(planned.status).conditions, planned.events)
        try:
            for action in planned.actions:
                await self._act(action)
        except ServeError as error:
            # Keep the old status, because the next plan must see that the action is not done.
            return replace(look, events=(Event("Warning", error.reason, error.message),), failure=error)
        self._resource = replace(self._resource, status=planned.status)
        return look

    async def _act(self, action: Action) -> None:
        match action:
            case DeployApplication(address, application, _):
                await self._client.deploy(address, None, application)
            case RemoveApplication(address, name):
                await self._client.remove(address, None, name, _OWNER)
            case _:
                raise AssertionError(f"a plan for this machine has no {type(action).__name__}")
