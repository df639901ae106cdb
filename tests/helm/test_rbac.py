"""The operator has the rights that its calls need, and no others."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from octavo_operator.kube.api import APPLY_PATCH, JSON
from octavo_operator.kube.client import Kube
from octavo_operator.kube.errors import NotFound
from octavo_operator.loop import handlers
from octavo_operator.model import kinds, names
from octavo_operator.model.actions import Delete, PatchCluster, PatchService
from octavo_operator.model.kinds import Kind
from octavo_operator.model.observed import Key

Document = dict[str, Any]
Right = tuple[str, str, str]
"""Verb, group, plural with the subresource after a slash."""

OWNER_REFERENCES: Right = ("update", names.GROUP, f"{names.PLURAL}/finalizers")
"""Never called: the admission plugin OwnerReferencesPermissionEnforcement asks whether it is granted."""


def rights(rules: list[Document]) -> Iterator[Right]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield verb, group, resource


class Recorder:
    """Answers every call with a document that a caller can go on with, and notes the right that it needs."""

    def __init__(self) -> None:
        self.asked: set[Right] = set()

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Document:
        words = path.strip("/").split("/")
        group, rest = (words[1], words[3:]) if words[0] == "apis" else ("", words[2:])
        if rest[:1] == ["namespaces"]:
            rest = rest[2:]
        if not rest:  # discovery, which everybody who is authenticated may read
            return {"resources": []}
        plural, name, subresource = (*rest, "", "")[:3]
        verbs = {"GET": ["get"] if name else ["list"], "POST": ["create"], "DELETE": ["delete"], "PATCH": ["patch"]}[
            method
        ]
        if content_type == APPLY_PATCH:
            verbs = [*verbs, "create"]
        self.asked |= {(verb, group, f"{plural}/{subresource}" if subresource else plural) for verb in verbs}
        if name and method == "GET" and plural != names.PLURAL:
            raise NotFound("nothing here")
        return RESOURCE if name or method == "POST" else {"items": []}


RESOURCE: Document = {
    "apiVersion": f"{names.GROUP}/{names.VERSION}",
    "kind": "ServingDeployment",
    "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1"},
    "spec": {},
}


def document(kind: Kind) -> Document:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "a", "namespace": "n"}}


async def asked() -> set[Right]:
    """Calls everything that ``Kube`` can do, with every kind that the operator writes."""
    recorder, key = Recorder(), Key("n", "a")
    kube = Kube(recorder)
    resource = await kube.get_resource(key)
    assert resource is not None
    applied = [kinds.RAY_CLUSTER, *kinds.LISTED_CHILDREN]
    # No plan deletes a Service: it goes with its owner.
    deleted = [kind for kind in applied if kind != kinds.SERVICE]
    calls: dict[str, list[Any]] = {
        "get_resource": [],
        "list_keys": [kube.list_keys()],
        "kind_installed": [kube.kind_installed(kinds.RAY_CLUSTER)],
        "list_children": [kube.list_children(key)],
        "ready_endpoints": [kube.ready_endpoints("n", "a")],
        "get_secret": [kube.get_secret("n", "a")],
        "get_secret_value": [kube.get_secret_value("n", "a", "key")],
        "claim_exists": [kube.claim_exists("n", "a")],
        "get_child": [kube.get_child(kind, "n", "a") for kind in [*applied, kinds.SECRET]],
        "apply": [kube.apply("n", document(kind)) for kind in applied],
        "patch_cluster": [kube.patch_cluster("n", PatchCluster("a", ()))],
        "patch_service": [kube.patch_service("n", PatchService("a", ()))],
        "create_secret": [kube.create_secret("n", document(kinds.SECRET), ["key"])],
        "delete": [kube.delete("n", Delete(kind.api_version, kind.kind, "a", "u")) for kind in deleted],
        "patch_status": [kube.patch_status(resource, {})],
        "set_finalizer": [kube.set_finalizer(resource, "f", present=True)],
        "namespace_terminating": [kube.namespace_terminating("n")],
        "apply_event": [kube.apply_event("n", document(kinds.EVENT))],
    }
    public = {name for name, _ in inspect.getmembers(Kube, inspect.iscoroutinefunction) if not name.startswith("_")}
    assert calls.keys() == public, "this test calls all that Kube can do"
    for pending in calls.values():
        for call in pending:
            await call
    watches = {(verb, kind.group, kind.plural) for kind in handlers.WATCHED for verb in ("list", "watch")}
    return recorder.asked | watches


async def test_what_is_granted_is_what_the_operator_calls(
    render: Callable[..., list[Document]], find: Callable[..., Document]
) -> None:
    needed = await asked()
    for values, kind in (({}, "Role"), ({"clusterWide": True}, "ClusterRole")):
        granted = set(rights(find(render(values), kind)["rules"]))
        assert granted - needed == {OWNER_REFERENCES}
        assert needed - granted == set()


def test_nothing_is_granted_by_a_wildcard_and_secrets_are_never_listed(documents: list[Document]) -> None:
    for role in documents:
        if role["kind"] not in ("Role", "ClusterRole"):
            continue
        for verb, group, resource in rights(role["rules"]):
            assert "*" not in (verb, group, resource)
            if resource == "secrets":
                assert verb in ("get", "create")


def test_a_namespaced_installation_has_no_right_beyond_its_namespaces(render: Callable[..., list[Document]]) -> None:
    for values, namespaces in (({}, {"octavo-system"}), ({"watchNamespaces": ["a", "b"]}, {"a", "b"})):
        documents = render(values)
        assert not [d for d in documents if d["kind"] in ("ClusterRole", "ClusterRoleBinding")]
        for kind in ("Role", "RoleBinding"):
            assert {d["metadata"]["namespace"] for d in documents if d["kind"] == kind} == namespaces


def test_bindings_bind_the_operators_account(documents: list[Document], find: Callable[..., Document]) -> None:
    account = find(documents, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    roles = {(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in documents}
    bindings = [d for d in documents if d["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    assert bindings
    for binding in bindings:
        subject = {"kind": "ServiceAccount", "name": account, "namespace": "octavo-system"}
        assert binding["subjects"] == [subject]
        role = binding["roleRef"]
        assert (role["kind"], binding["metadata"].get("namespace"), role["name"]) in roles


def test_two_releases_in_two_namespaces_have_no_cluster_object_in_common(render: Callable[..., list[Document]]) -> None:
    values = {"clusterWide": True, "rbac": {"aggregateToDefaultRoles": True}, "crds": {"install": False}}
    first, second = (
        {(d["kind"], d["metadata"]["name"]) for d in render(values, namespace=n) if "namespace" not in d["metadata"]}
        for n in ("one", "two")
    )
    assert first
    assert not first & second


def test_everybody_who_may_edit_may_edit_deployments_where_asked(
    render: Callable[..., list[Document]], find: Callable[..., Document]
) -> None:
    documents = render({"rbac": {"aggregateToDefaultRoles": True}})
    view, edit = find(documents, "ClusterRole", "-view$"), find(documents, "ClusterRole", "-edit$")
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in edit["metadata"]["labels"]
    assert {verb for verb, _, _ in rights(view["rules"])} == {"get", "list", "watch"}
    assert all(group == names.GROUP for _, group, _ in rights(view["rules"] + edit["rules"]))
