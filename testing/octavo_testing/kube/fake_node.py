"""A node that exists only in the API: pods scheduled to it are said to run and be ready, and go when they are deleted.

It plays the kubelet's part of the protocol, with its own eyes closed: nothing is started. ``KUBECONFIG`` says where.
"""

import asyncio
import datetime
import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import kubernetes.aio.client as client
import kubernetes.aio.config as config
import kubernetes.aio.watch as watch
from kubernetes.aio.client.exceptions import ApiException

NODE = "fake"
_CAPACITY = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "1000", "nvidia.com/gpu": "8"}
_LEASE_SECONDS = 40
_MERGE = "application/strategic-merge-patch+json"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@contextmanager
def _busy_server(what: str) -> Iterator[None]:
    """One that refuses or cuts a call is asked again: a node that gave up would leave all later pods pending."""
    try:
        yield
    except (ApiException, aiohttp.ClientError, TimeoutError) as error:
        logging.warning("%s: %r", what, error)


class FakeNode:
    def __init__(self, api: client.ApiClient) -> None:
        self._core = client.CoreV1Api(api)
        self._leases = client.CoordinationV1Api(api)
        self._addresses = itertools.count(2)

    async def run(self) -> None:
        await self._register()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._renew())
            tasks.create_task(self._keep_pods())

    async def _register(self) -> None:
        status = {
            "capacity": _CAPACITY,
            "allocatable": _CAPACITY,
            "addresses": [{"type": "InternalIP", "address": "10.240.0.1"}],
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Fake",
                    "message": "nothing runs here",
                    "lastHeartbeatTime": _now(),
                    "lastTransitionTime": _now(),
                }
            ],
            "nodeInfo": dict.fromkeys(
                (
                    "machineID",
                    "systemUUID",
                    "bootID",
                    "kernelVersion",
                    "osImage",
                    "containerRuntimeVersion",
                    "kubeletVersion",
                    "kubeProxyVersion",
                ),
                "fake",
            )
            | {"operatingSystem": "linux", "architecture": "amd64"},
        }
        await self._renew_once()
        node: Any = {"metadata": {"name": NODE, "labels": {"kubernetes.io/os": "linux"}}}
        await self._core.create_node(node)
        await self._core.patch_node_status(NODE, {"status": status}, _content_type=_MERGE)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_LEASE_SECONDS / 4)
            with _busy_server("lease"):
                await self._renew_once()

    async def _renew_once(self) -> None:
        body = {
            "metadata": {"name": NODE, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": NODE, "leaseDurationSeconds": _LEASE_SECONDS, "renewTime": _now()},
        }
        try:
            await self._leases.patch_namespaced_lease(NODE, "kube-node-lease", body, _content_type=_MERGE)
        except ApiException as error:
            if error.status != 404:
                raise
            await self._create_lease(body)

    async def _create_lease(self, body: Any) -> None:
        """A new server makes the namespace a moment after it answers."""
        for _ in range(100):
            try:
                await self._leases.create_namespaced_lease("kube-node-lease", body)
                return
            except ApiException as error:
                if error.status != 404:
                    raise
            await asyncio.sleep(0.1)
        raise TimeoutError("no namespace kube-node-lease in 10 s")

    async def _keep_pods(self) -> None:
        while True:
            stream: Any = watch.Watch()  # type: ignore[no-untyped-call]
            with _busy_server("watch of pods"):
                async for event in stream.stream(
                    self._core.list_pod_for_all_namespaces, field_selector=f"spec.nodeName={NODE}", timeout_seconds=300
                ):
                    if event["type"] in ("ADDED", "MODIFIED"):
                        await self._keep(event["object"])
            await asyncio.sleep(0.2)

    async def _keep(self, pod: Any) -> None:
        name, namespace = pod.metadata.name, pod.metadata.namespace
        try:
            if pod.metadata.deletion_timestamp is not None:
                await self._core.delete_namespaced_pod(name, namespace, grace_period_seconds=0)
            elif pod.status.phase == "Pending":
                await self._core.patch_namespaced_pod_status(
                    name, namespace, {"status": self._status(pod)}, _content_type=_MERGE
                )
        except ApiException as error:
            if error.status not in (404, 409):
                raise

    def _status(self, pod: Any) -> dict[str, Any]:
        """Of a pod whose containers all run; a task has done its work already.

        The restart policy does not say what is a task: KubeRay gives ``Never`` to pods that serve.
        """
        now = _now()
        owners = pod.metadata.owner_references or ()
        done = "helm.sh/hook" in (pod.metadata.annotations or {}) or any(owner.kind == "Job" for owner in owners)
        ran = {"startedAt": now, "finishedAt": now, "exitCode": 0, "reason": "Completed"}
        state = {"terminated": ran} if done else {"running": {"startedAt": now}}
        high, low = divmod(next(self._addresses), 250)
        return {
            "phase": "Succeeded" if done else "Running",
            "podIP": f"10.244.{high}.{low + 1}",
            "podIPs": [{"ip": f"10.244.{high}.{low + 1}"}],
            "hostIP": "10.240.0.1",
            "startTime": now,
            "conditions": [
                {"type": type_, "status": "False" if done and "Ready" in type_ else "True", "lastTransitionTime": now}
                for type_ in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
            "initContainerStatuses": [
                _container(c, {"terminated": ran}, ready=True) for c in pod.spec.init_containers or ()
            ],
            "containerStatuses": [_container(c, state, ready=not done) for c in pod.spec.containers],
        }


def _container(container: Any, state: dict[str, Any], *, ready: bool) -> dict[str, Any]:
    return {
        "name": container.name,
        "image": container.image,
        "imageID": "fake",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
    }


async def main() -> None:
    await config.load_kube_config()  # type: ignore[no-untyped-call]
    async with client.ApiClient() as api:
        await FakeNode(api).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())
