"""One HTTP call to the Kubernetes API server, by the official client's configuration and connection.

Documents stay plain dicts: the client's typed models would copy every object without benefit.
"""

import json
import os
import ssl
from collections.abc import Mapping
from typing import Any, Protocol

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import load_incluster_config, load_kube_config
from kubernetes.aio.config.config_exception import ConfigException

from octavo_api.errors import ConfigurationError
from octavo_operator.kube.errors import Unavailable, error_of

REQUEST_TIMEOUT_S, CONNECT_TIMEOUT_S = 30.0, 5.0

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class Api(Protocol):
    """Client interface that ``Kube`` needs."""

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> dict[str, Any]:
        """Return the object in the answer; raise a ``KubeError`` on failure."""


async def load_configuration() -> Configuration:
    """Read the service account in a pod, else ``KUBECONFIG`` or ``~/.kube/config``.

    Raise ``ConfigurationError`` if there is no access. A service account's token file is read again after its rotation.
    """
    configuration = Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            file = os.environ.get("KUBECONFIG") or "~/.kube/config"
            await load_kube_config(config_file=file, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError) as error:
        raise ConfigurationError(
            f"no access to a Kubernetes API server: {error}; run in a pod with a service account, or set KUBECONFIG"
        ) from None
    return configuration


class HttpApi:
    """``Api`` over one ``kubernetes.aio`` client."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._client = ApiClient(configuration)
        self._client.user_agent = "octavo-operator"
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_timeout_s)

    async def close(self) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> dict[str, Any]:
        try:
            method, url, headers, body, _ = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": accept, "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(method, url, headers, body, _request_timeout=self._timeout)
            data: bytes = await response.read()  # type: ignore[no-untyped-call]
        except (TimeoutError, aiohttp.ClientError, ssl.SSLError, OSError, ConfigException) as error:
            raise Unavailable(f"{method} {path}: {str(error) or type(error).__name__}") from error
        if response.status >= 400:
            raise error_of(f"{method} {path}", response.status, response.headers, data)
        try:
            answer = json.loads(data) if data else {}
        except ValueError:
            raise Unavailable(f"{method} {path}: the answer is not JSON") from None
        return answer if isinstance(answer, dict) else {}
