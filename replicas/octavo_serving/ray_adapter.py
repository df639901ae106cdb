"""Every private or alpha name of Ray that this project uses, checked against ``ray==2.60.*``.

``RequestRouter`` and late-bound ingress are alpha. These parts of Ray are private:

- ``DeploymentHandle._init`` and a handle's report of its queue;
- the replica context's deployment configuration and the controller client;
- ``ray.init(_temp_dir=...)``, the start of Ray's processes, and its handler of SIGTERM;
- Ray's cached configuration and token, and the key-value store of its head.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import ray
from pydantic import ValidationError
from ray import serve
from ray._private import services, utils
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # compiled, without types
from ray.exceptions import RayError, RayTaskError
from ray.experimental import internal_kv
from ray.serve._private.api import serve_start
from ray.serve._private.client import ServeControllerClient
from ray.serve._private.metrics_utils import QUEUED_REQUESTS_KEY
from ray.serve.config import RequestRouterConfig
from ray.serve.deployment import Deployment
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
from ray.serve.schema import ServeDeploySchema
from ray.util import get_node_ip_address

from octavo_api.errors import StartupError
from octavo_serving import announcements

_NAMESPACE = "octavo"
"""Namespace of this project's keys in the store of Ray's head."""

_OBJECT_STORE_BYTES = 78_643_200
"""Bytes of Ray's object store: Ray's minimum, because no token and no weight passes through it."""


class MirrorRouter(RequestRouter):
    """Router that copies Serve's announcements of a deployment's replicas into ``REGISTRY``. It routes no request.

    Serve pickles this class by value. The class names the registry through its module; otherwise Serve would copy
    the registry too.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        return [candidate_replicas]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        running = tuple(
            announcements.Announcement(r.replica_id.unique_id, dict(r.replica_metadata or {})) for r in replicas
        )
        announcements.REGISTRY.publish(deployment_key(self._deployment_id.app_name, self._deployment_id.name), running)


def deployment_key(application: str, deployment: str) -> str:
    return f"{application}#{deployment}"


def mirror_router_config() -> RequestRouterConfig:
    return RequestRouterConfig(request_router_class=MirrorRouter)  # type: ignore[arg-type]  # pydantic's plugin misreads it


def mirror(handle: DeploymentHandle[Any]) -> str:
    """Start the handle's router, which otherwise waits for a first request. Return the key in ``REGISTRY``."""
    if not handle.is_initialized:
        handle._init()  # type: ignore[no-untyped-call]
    return deployment_key(handle.app_name, handle.deployment_name)


async def call_for_replica(handle: DeploymentHandle[Any]) -> None:
    """Call ``wake`` of the deployment and return after a replica has answered. Cancel it to withdraw the call.

    Serve starts a first replica after its controller receives a report of a waiting call. A handle reports the
    averages of its recent past, every ten seconds. So this function deletes that past. Otherwise Serve would notice
    a call late and would count an answered call too long.
    """
    router: Any = handle._router
    metrics = router._asyncio_router._metrics_manager
    metrics.metrics_store.data.pop(QUEUED_REQUESTS_KEY, None)
    response = handle.wake.remote()
    try:
        await response
    finally:
        response.cancel()  # type: ignore[no-untyped-call]
        metrics.metrics_store.data.pop(QUEUED_REQUESTS_KEY, None)
        metrics.push_autoscaling_metrics_to_controller()


def start_ray(num_cpus: int, folder: Path) -> None:
    """Start a separate Ray in ``folder`` and connect this process to it, whatever else runs on the machine.

    Raise ``StartupError``.
    """
    # Ray read the environment when it was imported. Variables set since then (RAY_AUTH_MODE) count from here. Ray keeps
    # its token from the first use on, also for a second Ray, which has another token.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    try:
        with _without_ray_signal_handlers():
            ray.init(
                address="local",
                num_cpus=num_cpus,
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=str(folder),
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except (RuntimeError, ConnectionError, RayError) as error:
        raise StartupError(f"Ray cannot start: {str(error).strip().splitlines()[0]}") from error


@contextmanager
def _without_ray_signal_handlers() -> Iterator[None]:
    """Prevent Ray from setting handlers of SIGTERM, and keep its processes out of this one's process group.

    A terminal or a supervisor sends a signal to the whole group. Such a signal would end Ray while this process
    still drains. If it came while Ray starts, Ray would wait half a minute for a process that is gone.
    """

    starter: Any = services
    before = starter.ConsolePopen, utils.set_sigterm_handler
    starter.ConsolePopen = partial(starter.ConsolePopen, process_group=0)
    utils.set_sigterm_handler = _keep_handler
    try:
        yield
    finally:
        starter.ConsolePopen, utils.set_sigterm_handler = before


def _keep_handler(handler: object) -> None:
    """Replacement for Ray's ``set_sigterm_handler`` that does nothing."""


def get_or_create(key: str, value: str) -> str:
    """Return the value under ``key`` in Ray's own store. If there was none, store and return ``value``."""
    internal_kv._internal_kv_put(key, value, overwrite=False, namespace=_NAMESPACE)
    stored = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
    if stored is None:
        raise StartupError(f"Ray's store lost {key} right after it was written")
    return bytes(stored).decode()


class Store:
    """A folder of Ray's own store. Calls block for a moment and raise ``RayError`` if the head is out of reach."""

    def __init__(self, folder: str) -> None:
        self._folder = f"{folder}/"

    def put(self, name: str, value: str) -> None:
        internal_kv._internal_kv_put(self._folder + name, value, namespace=_NAMESPACE)

    def entries(self) -> dict[str, str]:
        found = {}
        for key in internal_kv._internal_kv_list(self._folder, namespace=_NAMESPACE):
            value = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
            if value is not None:
                found[key.decode().removeprefix(self._folder)] = value.decode()
        return found

    def delete(self, name: str) -> None:
        internal_kv._internal_kv_del(self._folder + name, namespace=_NAMESPACE)


def replica_id() -> ReplicaID:
    return serve.get_replica_context().replica_id


def own_address() -> str:
    """Return the address of this node in the cluster."""
    address: str = get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def assigned_cpus() -> float | None:
    """Return the number of CPUs that Ray assigned to this replica; None if it has no such limit."""
    resources: dict[str, float] = ray.get_runtime_context().get_assigned_resources()  # type: ignore[no-untyped-call]
    return resources.get("CPU")


def deployment(replica: type[Any], **options: Any) -> Deployment:
    """Return the Serve deployment of a class of replicas."""
    decorated: Any = serve.deployment(replica)
    return cast(Deployment, decorated.options(**options))


def application_name() -> str:
    return serve.get_replica_context().app_name


def initial_user_config() -> dict[str, Any]:
    """Return the ``user_config`` that ``reconfigure`` gets after the constructor, already inside the constructor."""
    return dict(serve.get_replica_context()._deployment_config.user_config or {})


class Controller:
    """Functions of the dashboard's REST interface, without a dashboard."""

    UNREACHABLE = (RayError, RayServeException)
    """Errors of every call while Serve's controller restarts."""
    REFUSED = (ValidationError, RayTaskError)
    """Errors of ``put`` if Serve rejects the configuration. Catch them before ``UNREACHABLE``."""

    def __init__(self, client: ServeControllerClient) -> None:
        self._client = client

    @classmethod
    def start(cls, *, proxy_location: str, http_host: str = "127.0.0.1", http_port: int = 8000) -> "Controller":
        """Start Serve on the Ray that this process is connected to."""
        http = {"host": http_host, "port": http_port}
        return cls(serve_start(proxy_location=proxy_location, http_options=http))

    def put(self, config: Mapping[str, Any]) -> None:
        """Declare ``config`` as the whole configuration, as ``PUT /api/serve/applications/`` does.

        Return before the configuration takes effect. Raise ``REFUSED`` if the configuration is wrong.
        """
        self._client.deploy_apps(ServeDeploySchema.model_validate(config))

    def apply(self, applications: list[dict[str, Any]]) -> None:
        """Declare ``applications`` as all applications."""
        self.put({"applications": applications})

    def details(self) -> dict[str, Any]:
        """Return the answer of ``GET /api/serve/applications/``."""
        details: dict[str, Any] = self._client.get_serve_details()
        return details

    def version(self) -> str:
        return ray.__version__
