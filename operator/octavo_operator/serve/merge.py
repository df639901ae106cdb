"""Merges for ``PUT /api/serve/applications/``, which replaces all declared applications.

The functions are pure. They return the body of the PUT for Serve's details and one application.
"""

from collections.abc import Mapping
from typing import Any

from octavo_operator.serve.details import DECLARATIVE, enum_value
from octavo_operator.serve.errors import NameConflict, ServeBusy


def with_application(
    details: Mapping[str, Any], application: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the body that adds or replaces ``application`` and keeps all others as they were put.

    ``options`` are Serve's. They count only if it does not run yet. Raise ``NameConflict`` if an application of that
    name, or with that route, has another owner. Raise ``ServeBusy`` if a configuration is not known.
    """
    name, owner = application["name"], _owner(application)
    check_owner(details, name, owner)
    others = _others(details, name)
    route = application.get("route_prefix", "/")
    for other in others:
        if route is not None and other.get("route_prefix", "/") == route:
            raise NameConflict(
                f"route prefix {route} belongs to application {other['name']}; change it, or delete that application"
            )
    return _body(details, [*others, dict(application)], options)


def without_application(details: Mapping[str, Any], name: str, owner: str) -> dict[str, Any] | None:
    """Return the body that leaves ``name`` out, None if there is nothing of ours to leave out."""
    found = (details.get("applications") or {}).get(name)
    if found is None or enum_value(found.get("status")) == "DELETING":
        return None
    try:
        check_owner(details, name, owner)
    except NameConflict:
        return None
    return _body(details, _others(details, name), None)


def check_owner(details: Mapping[str, Any], name: str, owner: str | None) -> None:
    """Raise ``NameConflict`` if another owner deployed ``name``, ``ServeBusy`` if its owner is unknown."""
    found = (details.get("applications") or {}).get(name)
    if found is None or enum_value(found.get("status")) == "DELETING":
        return
    config = found.get("deployed_app_config")
    if config is None and _declared(found):
        raise ServeBusy(f"application {name}: Serve does not report its configuration now, so the operator retries")
    if config is None or _owner(config) != owner:
        theirs = _owner(config or {})
        by = f"owned by {theirs}" if theirs else "not deployed by Octavo"
        raise NameConflict(
            f"application {name} exists already, {by}; rename the ServingDeployment, or delete that application"
        )


def _others(details: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    kept = []
    for other, state in (details.get("applications") or {}).items():
        # An application that is being deleted is no longer declared. A PUT does not touch one made by code in Ray.
        if other == name or not _declared(state) or enum_value(state.get("status")) == "DELETING":
            continue
        config = state.get("deployed_app_config")
        if not isinstance(config, Mapping) or config.get("name") != other:
            raise ServeBusy(
                f"application {other}: Serve does not report its configuration now; a PUT without it would delete it"
            )
        kept.append(dict(config))
    return kept


def _body(
    details: Mapping[str, Any], applications: list[dict[str, Any]], options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the body to put.

    It repeats the options of a running Serve, because a PUT without them would warn, or reset the capacity.
    """
    running = {
        name: details[name]
        for name in ("proxy_location", "http_options", "grpc_options", "target_capacity")
        if details.get(name) is not None
    }
    if not details.get("controller_info"):
        running = {**(options or {})}
    return {**running, "applications": applications}


def _declared(state: Mapping[str, Any]) -> bool:
    """Return True if the application was declared.

    An older Serve does not report the source. There an application with a known configuration was declared.
    """
    source = enum_value(state.get("source"))
    return source == DECLARATIVE if source else state.get("deployed_app_config") is not None


def _owner(application: Mapping[str, Any]) -> str | None:
    owner = (application.get("args") or {}).get("owner")
    return owner if isinstance(owner, str) else None
