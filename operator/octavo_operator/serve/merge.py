"""``PUT /api/serve/applications/`` replaces everything that is declared, so every change is a merge.

Pure: Serve's details and one application in, the body to put out.
"""

from collections.abc import Mapping
from typing import Any

from octavo_operator.serve.errors import NameConflict, NotKeepable
from octavo_operator.serve.state import DECLARATIVE, word


def with_application(
    details: Mapping[str, Any], application: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the body that adds or replaces ``application`` and keeps all others as they were put.

    ``options`` are Serve's, which count only where it does not run yet. Raises ``NameConflict`` where an application
    of that name, or with that route, has another owner; ``NotKeepable`` where a configuration is not known.
    """
    name, owner = application["name"], _owner(application)
    check_owner(details, name, owner)
    others = _others(details, name)
    route = application.get("route_prefix", "/")
    for other in others:
        if route is not None and other.get("route_prefix", "/") == route:
            raise NameConflict(f"route prefix {route} belongs to application {other['name']}; change it or remove that")
    return _body(details, [*others, dict(application)], options)


def without_application(details: Mapping[str, Any], name: str, owner: str) -> dict[str, Any] | None:
    """Returns the body that leaves ``name`` out, None where there is nothing of ours to leave out."""
    found = (details.get("applications") or {}).get(name)
    if found is None or word(found.get("status")) == "DELETING":
        return None
    try:
        check_owner(details, name, owner)
    except NameConflict:
        return None
    return _body(details, _others(details, name), None)


def check_owner(details: Mapping[str, Any], name: str, owner: str | None) -> None:
    """Raises ``NameConflict`` where ``name`` is deployed by someone else, ``NotKeepable`` where by whom is unknown."""
    found = (details.get("applications") or {}).get(name)
    if found is None or word(found.get("status")) == "DELETING":
        return
    config = found.get("deployed_app_config")
    if config is None and _declared(found):
        raise NotKeepable(f"application {name}: Serve does not say now how it was deployed")
    if config is None or _owner(config) != owner:
        theirs = _owner(config or {})
        by = f"owned by {theirs}" if theirs else "not deployed by Octavo"
        raise NameConflict(f"application {name} is there already, {by}; rename the ServingDeployment or remove it")


def _others(details: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    kept = []
    for other, state in (details.get("applications") or {}).items():
        # One that is being deleted is declared no more, and one made by code in Ray is untouched by a PUT.
        if other == name or not _declared(state) or word(state.get("status")) == "DELETING":
            continue
        config = state.get("deployed_app_config")
        if not isinstance(config, Mapping) or config.get("name") != other:
            raise NotKeepable(f"application {other}: Serve does not say now how it was deployed, so it could be lost")
        kept.append(dict(config))
    return kept


def _body(
    details: Mapping[str, Any], applications: list[dict[str, Any]], options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Options of a running Serve are repeated, because a PUT without them would warn, or reset the capacity."""
    running = {
        name: details[name]
        for name in ("proxy_location", "http_options", "grpc_options", "target_capacity")
        if details.get(name) is not None
    }
    if not details.get("controller_info"):
        running = {**(options or {})}
    return {**running, "applications": applications}


def _declared(state: Mapping[str, Any]) -> bool:
    """An older Serve does not say; one whose configuration is told was declared."""
    source = word(state.get("source"))
    return source == DECLARATIVE if source else state.get("deployed_app_config") is not None


def _owner(application: Mapping[str, Any]) -> str | None:
    owner = (application.get("args") or {}).get("owner")
    return owner if isinstance(owner, str) else None
