"""Gateways' addresses, certificates and keys, as their place sets them."""

import ssl
from pathlib import Path

import grpc
import httpx
import pytest

from octavo_api.resource.serve_config import Bind
from octavo_testing.certificates import self_signed
from octavo_testing.serving.cluster import Cluster
from octavo_testing.waiting import eventually

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*metrics_interval_s"),
]


def test_gateways_on_allocated_ports_name_all_their_doors(cluster: Cluster) -> None:
    placed = {"http_port": 0, "grpc_port": 0, "bind": Bind.NODE}

    def doors() -> list[str]:
        try:
            answer = httpx.get(f"{cluster.proxied}/doors", timeout=5, trust_env=False)
        except httpx.HTTPError:  # Serve's proxy waits for a gateway
            return []
        return list(answer.json()["doors"]) if answer.is_success else []

    def there() -> list[str]:
        """On the node's own address: the gateways before listened on another, and are named until they are gone."""
        return [door for door in doors() if "://127." not in door]

    def number(gateways: int) -> list[str]:
        """Waits until every gateway, whichever answers, names all."""
        cluster.apply(cluster.application(placed, router={"replicas": gateways}))
        eventually(f"{gateways} gateways", lambda: cluster.settled(1, gateways), timeout_s=80)
        eventually(f"doors of {gateways}", lambda: all(len(there()) == len(doors()) == 2 * gateways for _ in range(6)))
        return doors()

    for door in number(2):
        scheme, _, address = door.partition("://")
        if scheme == "http":
            eventually(door, lambda door=door: cluster.complete(door, max_tokens=1).status_code == 200)
            assert httpx.get(f"{door}/doors", trust_env=False).status_code == 404
        else:
            with grpc.insecure_channel(address) as channel:
                grpc.channel_ready_future(channel).result(timeout=20)
    number(1)
    [victim] = cluster.replicas("Gateway")
    before = set(doors())
    cluster.kill(victim)
    eventually("a successor's doors only", lambda: (now := set(doors())) and not now & before)


def test_certificate_and_keys_are_used_and_a_missing_one_is_named(cluster: Cluster, tmp_path: Path) -> None:
    pair = self_signed()
    (tmp_path / "tls.crt").write_bytes(pair.certificate)
    keys = tmp_path / "keys"
    keys.write_text("key-of-a-reader\n")
    placed = {"tls_folder": str(tmp_path), "api_key_file": str(keys)}
    cluster.apply(cluster.application(placed))
    complaint = f"TLS: {tmp_path / 'tls.key'}: No such file"
    eventually("the missing key's name", lambda: any(complaint in line["message"] for line in cluster.log_lines()))
    (tmp_path / "tls.key").write_bytes(pair.key)
    trust = ssl.create_default_context(cadata=pair.certificate.decode())
    url = f"https://localhost:{cluster.http_port}"

    def answers(headers: dict[str, str]) -> int:
        try:
            body = {"model": "books", "prompt": "Once", "max_tokens": 1}
            return httpx.post(
                f"{url}/v1/completions", json=body, headers=headers, verify=trust, trust_env=False, timeout=20
            ).status_code
        except httpx.TransportError:
            return 0

    eventually("an answer", lambda: answers({"authorization": "Bearer key-of-a-reader"}) == 200)
    assert answers({}) == 401
    assert "key-of-a-reader" not in cluster.log.read_text() + str(cluster.details())
