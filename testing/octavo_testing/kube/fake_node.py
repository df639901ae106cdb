"""A node that exists only in the API: its pods are reported to run and be ready, and go when they are deleted.

It plays the kubelet's part of the protocol, and starts nothing. ``KUBECONFIG`` names the API server.
"""

import asyncio
import datetime
import itertools
import logging
from typing import Any

import aiohttp
import kubernetes.aio.client as client
import kubernetes.aio.config as config
import kubernetes.aio.watch as watch
from kubernetes.aio.client.exceptions import ApiException

NODE = "fake"
_CAPACITY = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "1000", "nvidia.com/gpu": "8"}
_MERGE = "application/strategic-merge-patch+json"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class FakeNode:
    def __init__(self, api: client.ApiClient) -> None:
        self._core = client.CoreV1Api(api)
        self._addresses = itertools.count(2)

    async def run(self) -> None:
        await self._register()
        while True:
            await self._keep_pods()
            await asyncio.sleep(0.2)

    async def _register(self) -> None:
        node: Any = {"metadata": {"name": NODE, "labels": {"kubernetes.io/os": "linux"}}}
        await self._core.create_node(node)
        # The API server taints a new node, and no controller here removes the taint.
        await self._core.patch_node(NODE, {"spec": {"taints": None}}, _content_type=_MERGE)
        ready = {"type": "Ready", "status": "True", "reason": "Fake", "message": "nothing runs here"}
        status = {
            "capacity": _CAPACITY,
            "allocatable": _CAPACITY,
            "addresses": [{"type": "InternalIP", "address": "10.240.0.1"}],
            "conditions": [{**ready, "lastHeartbeatTime": _now(), "lastTransitionTime": _now()}],
        }
        await self._core.patch_node_status(NODE, {"status": status}, _content_type=_MERGE)

    async def _keep_pods(self) -> None:
        """Watch pods for some minutes. A server that refuses or cuts the call is asked again."""
        stream: Any = watch.Watch()  # type: ignore[no-untyped-call]
        try:
            async for event in stream.stream(
                self._core.list_pod_for_all_namespaces, field_selector=f"spec.nodeName={NODE}", timeout_seconds=300
            ):
                if event["type"] in ("ADDED", "MODIFIED"):
                    await self._keep(event["object"])
        except (ApiException, aiohttp.ClientError, TimeoutError) as error:
            logging.warning("watch of pods: %r", error)

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
