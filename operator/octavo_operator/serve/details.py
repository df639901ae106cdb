"""Conversion of Serve's details, the answer of ``GET /api/serve/applications/``, into ``observed`` types.

The operator, which receives JSON, and ``octavo up``, which receives Ray's own objects, share it.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo_operator.model.observed import Application, Deployment, Replica

_OWN_ERROR = re.compile(r"^(?:\w+\.)*octavo_\w+(?:\.\w+)*\.\w+: (?P<message>.*)", re.MULTILINE | re.DOTALL)
_LAST_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit)\w*(?:: .*)?$", re.MULTILINE)
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(?P<module>octavo_[\w.]+)'")
_ADDRESS = re.compile(r"(?:https?|grpcs?)://(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]{1,253}):[0-9]{1,5}")
_MAX_LISTENERS = 64
_MAX_REPLICAS = 4096
_MESSAGE_LENGTH = 16384

DECLARATIVE = "declarative"
VERSION = re.compile(r"[0-9]+\.[0-9]+[0-9A-Za-z.+-]{0,32}")
"""Pattern of a Ray version."""


def parse_application(details: Mapping[str, Any], name: str) -> Application | None:
    """Return one application from Serve's details, None if it is not there."""
    found = (details.get("applications") or {}).get(name)
    if found is None:
        return None
    return Application(
        name=name,
        status=enum_value(found.get("status")),
        message=_text(found.get("message")),
        config=found.get("deployed_app_config"),
        deployments={
            deployment: _deployment(deployment, state) for deployment, state in (found.get("deployments") or {}).items()
        },
    )


def application_error(application: Application) -> str:
    """Return the error in one message, from the tracebacks that Serve reports; the status if there is none."""
    messages = [d.message for d in application.deployments.values() if d.message and "Error" in d.message]
    return next((found for text in [*messages, application.message] if (found := error_line(text))), application.status)


def error_line(message: str) -> str:
    """Return the message of our own error in a traceback, else the last error's line, else the last line."""
    if own := list(_OWN_ERROR.finditer(message)):
        return own[-1]["message"].strip()
    if other := _LAST_ERROR.findall(message):
        return str(other[-1]).strip()
    lines = message.strip().splitlines()
    return lines[-1] if lines else ""


def with_plain_message(application: Application) -> Application:
    """Replace a traceback by the error in plain words, and a missing Octavo by the remedy."""
    if application.status not in ("DEPLOY_FAILED", "UNHEALTHY"):
        return application
    if (package := missing_package(application)) is not None:
        message = f"{package} cannot be imported in this Ray; install this version of Octavo in its environment"
    else:
        message = application_error(application) if application.message else ""
    return replace(application, message=message, missing_package=package or "")


def missing_package(application: Application) -> str | None:
    """Return the package of Octavo that this Ray could not import, None if it could or has not tried."""
    if application.status != "DEPLOY_FAILED":
        return None
    texts = [application.message, *(deployment.message for deployment in application.deployments.values())]
    found = next((match for text in texts if (match := _MISSING_MODULE.search(text))), None)
    return found["module"].partition(".")[0] if found else None


def proxy_url(details: Mapping[str, Any], dashboard_host: str) -> str | None:
    """Return the base address of Serve's proxy as seen from outside, None if none is healthy or reachable.

    Serve reports the port of its proxies, but no address that leads there. So the address has the dashboard's host.
    """
    options = details.get("http_options") or {}
    proxies = (details.get("proxies") or {}).values()
    if enum_value(details.get("proxy_location")) == "Disabled" or not any(_healthy(proxy) for proxy in proxies):
        return None
    listen_host, port = str(options.get("host") or ""), options.get("port")
    if not isinstance(port, int) or (_loopback(listen_host) and not _loopback(dashboard_host)):
        return None
    host = f"[{dashboard_host}]" if ":" in dashboard_host else dashboard_host
    return f"{'https' if options.get('ssl_certfile') else 'http'}://{host}:{port}"


def parse_listeners(answer: Any) -> tuple[str, ...]:
    """Read a gateway's answer to ``/doors``: ``{"doors": ["http://HOST:PORT", "grpc://HOST:PORT", …]}``.

    Leave out everything except plain ``http(s)`` or ``grpc(s)`` addresses with a port, because this goes into the
    status.
    """
    values = answer.get("doors") if isinstance(answer, Mapping) else None
    listed = values if isinstance(values, list) else []
    found = dict.fromkeys(door for door in listed if isinstance(door, str) and _ADDRESS.fullmatch(door))
    return tuple(found)[:_MAX_LISTENERS]


def enum_value(value: Any) -> str:
    """Return one of Serve's words, which are strings in JSON and enumerations in process."""
    return str(getattr(value, "value", value) or "")


def _deployment(name: str, state: Mapping[str, Any]) -> Deployment:
    return Deployment(
        name=name,
        status=enum_value(state.get("status")),
        target=state.get("target_num_replicas") or 0,
        replicas=tuple(_replica(replica) for replica in (state.get("replicas") or ())[:_MAX_REPLICAS]),
        message=_text(state.get("message")),
    )


def _replica(replica: Mapping[str, Any]) -> Replica:
    return Replica(
        replica_id=str(replica.get("replica_id")),
        state=enum_value(replica.get("state")),
        actor_id=replica.get("actor_id"),
        node_ip=replica.get("node_ip"),
        log=replica.get("log_file_path"),
    )


def _text(value: Any) -> str:
    """Return the end of a text, where a traceback has the error."""
    return str(value or "")[-_MESSAGE_LENGTH:]


def _healthy(proxy: Mapping[str, Any]) -> bool:
    return enum_value(proxy.get("status")) == "HEALTHY"


def _loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
