"""Observation of one deployment over HTTP: tokens, missing objects, and specs of another version."""

from octavo_operator.kube.ray_tokens import RayTokens
from octavo_operator.model.observed import Reach
from octavo_operator.observe import observe
from octavo_testing.operator.deployments import DEFAULTS, KEY, external, secret
from octavo_testing.operator.fakes.contract_kube import deployment
from octavo_testing.operator.fakes.serve_http import FakeServe


async def test_a_token_in_a_secret_is_used_as_it_is_now(api_server, kube, serve_client):
    async with FakeServe(token="new") as serve:
        reference = {"name": "ray", "key": "token"}
        external(
            api_server,
            serve.address,
            rayCluster={"external": {"dashboardURL": f"{serve.address}/", "authSecretRef": reference}},
        )
        resource = await kube.get_resource(KEY)

        async def seen():
            return await observe(kube, serve_client, RayTokens(kube), resource, DEFAULTS)

        found = await seen()
        assert found.missing_secrets == ("ray",)
        assert found.serve[serve.address].reach is Reach.AUTH_FAILED
        assert serve.calls == [], "without its token Ray is not asked"
        secret(api_server, "ray", other="x")
        assert (await seen()).missing_secrets == ("ray/token",)
        api_server.api.delete("Secret", "default", "ray")
        secret(api_server, "ray", token="old")
        assert (await seen()).serve[serve.address].reach is Reach.AUTH_FAILED
        api_server.api.delete("Secret", "default", "ray")
        secret(api_server, "ray", token="new\n")
        assert (await seen()).serve[serve.address].reach is Reach.OK


async def test_a_spec_that_is_not_understood_is_observed_and_can_be_deleted(api_server, kube, serve_client, ray_serve):
    external(api_server, ray_serve.address, engine={"fromTheFuture": 1})
    ray_serve.foreign("default.books", args={"owner": str(KEY)})
    seen = await observe(kube, serve_client, RayTokens(kube), await kube.get_resource(KEY), DEFAULTS)
    assert "default.books" in seen.serve[ray_serve.address].applications


async def test_missing_secrets_claims_and_kuberay_are_observed(api_server, kube, serve_client):
    document = deployment("default", "books")
    document["spec"] = {
        "model": {"uri": "pvc://weights/model", "cache": {"claimName": "cache"}},
        "endpoint": {"tlsSecretRef": {"name": "tls"}, "apiKeySecretRef": {"name": "keys"}},
    }
    api_server.api.create("user", document)
    secret(api_server, "tls", **{"tls.crt": "c"})
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"namespace": "default", "name": "cache"}}
    api_server.api.create("user", claim)
    api_server.api.kinds_missing.add("RayCluster")
    seen = await observe(kube, serve_client, RayTokens(kube), await kube.get_resource(KEY), DEFAULTS)
    assert seen.missing_secrets == ("keys", "tls/tls.key")
    assert seen.missing_claims == ("weights",)
    assert not seen.kuberay_installed
