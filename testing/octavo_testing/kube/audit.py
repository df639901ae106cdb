"""Calls of a ServiceAccount, from the API server's own audit log."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  userGroups: ["system:serviceaccounts:kube-system"]
- level: Metadata
  userGroups: ["system:serviceaccounts"]
- level: None
"""


class Right(NamedTuple):
    """Right of an RBAC rule: a verb on a kind of object; ``resource`` has its subresource after a slash."""

    verb: str
    group: str
    resource: str


@dataclass(frozen=True, slots=True)
class Call:
    """``code`` is the status of the answer."""

    right: Right
    namespace: str
    name: str
    code: int


def calls(log: Path, account: str) -> Iterator[Call]:
    """Calls for objects by the account ``NAMESPACE:NAME``; a watch is in the log as soon as it is answered."""
    user = f"system:serviceaccount:{account}"
    with log.open() as lines:
        for line in lines:
            if user not in line or not line.endswith("\n"):
                continue
            entry = json.loads(line)
            if entry["user"]["username"] != user or (what := entry.get("objectRef")) is None:
                continue
            resource = "/".join(filter(None, (what.get("resource", ""), what.get("subresource"))))
            group, verb = what.get("apiGroup", ""), entry["verb"]
            code = entry.get("responseStatus", {}).get("code", 0)
            where = what.get("namespace", ""), what.get("name", "")
            yield Call(Right(verb, group, resource), *where, code)
            if verb == "patch" and code == 201:
                # Server-side apply of what was not there: the server asked for this right too.
                yield Call(Right("create", group, resource), *where, code)
