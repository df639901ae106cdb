"""Handlers of kopf. Its watches feed the queue; it writes no finalizer, annotation or status to any object."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import kopf
from kubernetes.aio.client.rest import RESTClientObject

from octavo_operator.kube.api import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S, load_configuration
from octavo_operator.loop.watch_ages import WatchAges, recording_session
from octavo_operator.model import kinds, names
from octavo_operator.model.kinds import Kind
from octavo_operator.model.observed import Key

WATCHED_CHILDREN = (kinds.RAY_CLUSTER, kinds.SERVICE, kinds.DISRUPTION_BUDGET, kinds.ENDPOINT_SLICE)
"""Kinds of children to watch. Kubernetes creates the EndpointSlices of our Services, with the Services' labels."""
WATCHED: tuple[Kind, ...] = (kinds.SERVING_DEPLOYMENT, *WATCHED_CHILDREN)


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """Times of the watches in seconds. Tests shorten them."""

    server_timeout: float = 300
    client_timeout: float = 310
    inactivity_timeout: float = 70
    """Bookmarks come every minute, so a longer silence is a dead connection."""
    reconnect_backoff: float = 0.1
    error_backoffs: tuple[float, ...] = (1, 1, 2, 3, 5, 8, 13, 21)


def kopf_settings(times: WatchTimes) -> kopf.OperatorSettings:
    chosen = kopf.OperatorSettings()
    chosen.watching.server_timeout = times.server_timeout
    chosen.watching.client_timeout = times.client_timeout
    chosen.watching.connect_timeout = CONNECT_TIMEOUT_S
    chosen.watching.inactivity_timeout = times.inactivity_timeout
    chosen.watching.reconnect_backoff = times.reconnect_backoff
    chosen.watching.chunk_size = 500
    for kind in WATCHED_CHILDREN:
        # The API server filters, so foreign objects cost neither memory nor a reconcile.
        chosen.watching.label_selectors[kind.group, kind.plural] = names.DEPLOYMENT_LABEL
    chosen.networking.request_timeout = REQUEST_TIMEOUT_S
    chosen.networking.connect_timeout = CONNECT_TIMEOUT_S
    chosen.networking.error_backoffs = times.error_backoffs
    chosen.queueing.worker_limit = 50
    chosen.queueing.exit_timeout = 0.1
    # ``main`` detects newly installed kinds, so the operator needs no right to read all kinds and namespaces.
    chosen.scanning.disabled = True
    chosen.peering.standalone = True
    chosen.posting.enabled = False
    chosen.posting.loggers = False
    # kopf may end and restart in this process, which kopf must not kill for it.
    chosen.process.ultimate_exiting_timeout = None
    return chosen


def watch_names(installed: Sequence[Kind], namespaces: Sequence[str]) -> list[str]:
    """Return the names of kopf's watches, as ``WatchAges`` has them."""
    if not namespaces:
        return [kind.plural for kind in installed]
    return [f"{kind.plural}/{namespace}" for kind in installed for namespace in namespaces]


def build_registry(
    installed: Sequence[Kind],
    changed: Callable[[Key], None],
    is_own_write: Callable[[Key, str], bool],
    watches: WatchAges,
) -> kopf.OperatorRegistry:
    """Return handlers that call ``changed`` for every event, except for the operator's own status writes."""
    found = kopf.OperatorRegistry()

    async def resource_event(
        *, meta: Mapping[str, Any], namespace: str | None, name: str, type: str | None, **_: Any
    ) -> None:
        key = Key(namespace or "", name)
        if type != "MODIFIED" or not is_own_write(key, str(meta.get("resourceVersion"))):
            changed(key)

    async def child_event(*, labels: Mapping[str, str], namespace: str | None, **_: Any) -> None:
        changed(Key(namespace or "", labels[names.DEPLOYMENT_LABEL]))

    async def login(**_: Any) -> kopf.AiohttpSession:
        return await _login_session(watches)

    kopf.on.login(registry=found)(login)
    for kind in installed:
        if kind == kinds.SERVING_DEPLOYMENT:
            kopf.on.event(kind.group, kind.version, kind.plural, registry=found)(resource_event)
        else:
            labels = {names.DEPLOYMENT_LABEL: kopf.PRESENT}
            kopf.on.event(kind.group, kind.version, kind.plural, labels=labels, registry=found)(child_event)
    return found


async def _login_session(watches: WatchAges) -> kopf.AiohttpSession:
    """Log kopf in with the same configuration as the rest of the operator, read again."""
    configuration = await load_configuration()
    ssl_context = RESTClientObject(configuration).ssl_context
    token = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    headers = {"User-Agent": "octavo-operator", **({"Authorization": token} if token else {})}
    connector = aiohttp.TCPConnector(limit=0, ssl=ssl_context)
    options = {"proxy": configuration.proxy, "trust_env": True}
    logging.getLogger(__name__).debug("logging in at %s", configuration.host)
    return kopf.AiohttpSession(
        server=configuration.host,
        default_namespace=None,
        aiohttp_session=recording_session(watches, connector=connector, headers=headers, **options),
    )
