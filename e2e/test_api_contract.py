"""The operator's tests run on a fake API server; here the real one is held to the same contract."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from octavo_operator.kube.api import HttpApi, load_configuration
from octavo_testing.kube.kubectl import Kubectl
from octavo_testing.operator.fakes.contract_kube import KubeContract, Target


class TestKubeApiserver(KubeContract):
    @pytest.fixture
    async def target(self, namespace: Kubectl, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Target]:
        monkeypatch.setenv("KUBECONFIG", str(namespace.kubeconfig))
        api = HttpApi(await load_configuration())

        async def terminate(name: str) -> None:
            await asyncio.to_thread(namespace.run, "delete", "namespace", name, "--wait=false")

        yield Target(api, namespace.namespace, terminate)
        await api.close()
