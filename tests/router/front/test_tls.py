"""TLS at both listeners, also after the files of the certificate change."""

import asyncio
import ssl
from pathlib import Path

import grpc
import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from octavo_api.errors import ConfigurationError
from octavo_api.v1 import inference_pb2, inference_pb2_grpc
from octavo_router import gateway_server as module
from octavo_router.__main__ import main
from octavo_router.front.tls import Certificate, KeyPair
from octavo_router.gateway_server import GatewayServer
from octavo_testing.certificates import self_signed
from octavo_testing.waiting import eventually_async

ASK = {"model": "bytes", "prompt": "x"}
PEM = serialization.Encoding.PEM


def make_pair(name, key=None):
    """Return a self-signed certificate with the subject ``name``, and its key, in PEM."""
    pair = self_signed(name, key)
    return pair.certificate, pair.key


class Folder:
    """Folder like a Secret that the kubelet mounts: its files are links into a folder that is swapped in one step."""

    def __init__(self, path):
        self.path = path
        self.versions = 0
        for name in ("tls.crt", "tls.key"):
            (path / name).symlink_to(f"..data/{name}")

    def put(self, certificate, key):
        self.versions += 1
        version = self.path / f"..{self.versions}"
        version.mkdir()
        (version / "tls.crt").write_bytes(certificate)
        (version / "tls.key").write_bytes(key)
        link = self.path / "..new"
        link.symlink_to(version.name)
        link.replace(self.path / "..data")


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.fixture
async def secured(folder, start_gateway, pool, monkeypatch):
    """Start a gateway with a certificate called ``first``. Return the context of its client, too."""
    monkeypatch.setattr(module, "RENEW_S", 0.1)
    first = make_pair("first")
    folder.put(*first)
    return await start_gateway(pool, certificate=Certificate.from_folder(folder.path)), first


def trusting(pair):
    return ssl.create_default_context(cadata=pair[0].decode())


async def shown(server, pair):
    """Return the name in the certificate that a client which trusts ``pair`` receives. The client names no server."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.http_port, ssl=trusting(pair))
    name = dict(part[0] for part in writer.get_extra_info("peercert")["subject"])["commonName"]
    writer.close()
    return name


async def shows(server, pair, name):
    try:
        return await shown(server, pair) == name
    except ssl.SSLError:
        return False


def secure_stub(server, pair):
    credentials = grpc.ssl_channel_credentials(pair[0])
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = grpc.aio.secure_channel(f"127.0.0.1:{server.grpc_port}", credentials, options)
    return channel, inference_pb2_grpc.InferenceStub(channel)


def reloads(server):
    families = {family.name: family for family in server.metrics.registry.collect()}
    samples = families["octavo_secret_reloads"].samples
    return {s.labels["outcome"]: s.value for s in samples if s.name.endswith("_total") and s.labels["secret"] == "tls"}


async def test_both_listeners_speak_tls_and_nothing_else(secured):
    server, first = secured
    async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{server.http_port}", verify=trusting(first)) as http:
        answer = await http.post("/v1/completions", json=ASK)
        assert answer.json()["choices"][0]["text"] == "Hello, world"
    channel, stub = secure_stub(server, first)
    async with channel:
        answer = await stub.Generate(inference_pb2.GenerateRequest(text="x"), timeout=10)
        assert answer.choices[0].text == "Hello, world"
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}") as plain:
        with pytest.raises(httpx.HTTPError):
            await plain.get("/health")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await inference_pb2_grpc.InferenceStub(channel).Generate(inference_pb2.GenerateRequest(text="x"), timeout=5)


async def test_a_renewed_certificate_serves_new_connections_only(secured, folder, pool, write):
    server, first = secured
    go = asyncio.Event()
    pool.answer = lambda request: write.Script([[write.output("a")], go, [write.output("b", finish="length")]])
    second = make_pair("second", rsa.generate_private_key(65537, 2048))
    channel, stub = secure_stub(server, first)
    async with (
        channel,
        httpx.AsyncClient(base_url=f"https://127.0.0.1:{server.http_port}", verify=trusting(first)) as http,
        http.stream("POST", "/v1/completions", json=ASK | {"stream": True}) as stream,
    ):
        rpc = stub.GenerateStream(inference_pb2.GenerateRequest(text="x"))
        lines = stream.aiter_lines()
        await anext(lines)
        assert (await rpc.read()).choices[0].text == "a"
        folder.put(*second)
        await eventually_async("new connections get the second certificate", lambda: shows(server, second, "second"))
        other, newcomer = secure_stub(server, second)
        go.set()
        async with other:
            assert (await newcomer.Generate(inference_pb2.GenerateRequest(text="x"), timeout=10)).choices
        assert (await rpc.read()).choices[0].text == "b"
        assert [line async for line in lines][-2] == "data: [DONE]"
    assert reloads(server) == {"ok": 1}


def test_a_pair_replaced_during_its_reading_is_read_again(folder, monkeypatch):
    first, second = make_pair("first"), make_pair("second")
    folder.put(*first)
    read_bytes = Path.read_bytes

    def replaced_before_the_key(path):
        if path.name == "tls.key" and folder.versions == 1:
            folder.put(*second)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", replaced_before_the_key)
    assert KeyPair.from_folder(folder.path) == KeyPair(*second)


@pytest.mark.parametrize("broken", ["no certificate", "another's key", "cut off", "gone"])
async def test_an_unusable_pair_changes_nothing_and_is_counted_once(secured, folder, broken, caplog):
    server, first = secured
    certificate, key = make_pair("broken")
    if broken == "gone":
        (folder.path / "..data").unlink()
    else:
        folder.put(
            *{
                "no certificate": (b"nonsense", key),
                "another's key": (certificate, first[1]),
                "cut off": (certificate[:200], key),
            }[broken]
        )

    await eventually_async("the rejected pair is counted", lambda: reloads(server).get("refused"))
    await asyncio.sleep(0.5)
    assert reloads(server) == {"refused": 1}
    assert await shown(server, first) == "first"
    assert caplog.text.count("keeps the previous certificate") == 1
    assert key.decode().splitlines()[1] not in caplog.text
    third = make_pair("third")
    folder.put(*third)
    await eventually_async("new connections get the third certificate", lambda: shows(server, third, "third"))
    assert reloads(server) == {"refused": 1, "ok": 1}


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key"])
def test_a_missing_file_is_named_before_anything_is_served(tmp_path, missing, capsys):
    certificate, key = make_pair("x")
    for name, content in (("tls.crt", certificate), ("tls.key", key)):
        if name != missing:
            (tmp_path / name).write_bytes(content)
    assert main(["--tls-folder", str(tmp_path)]) == 1
    assert f"{tmp_path / missing}: No such file" in capsys.readouterr().err


def test_an_encrypted_key_is_rejected_without_a_prompt(tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    certificate, _ = make_pair("x", key)
    locked = key.private_bytes(
        PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"password")
    )
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(locked)
    with pytest.raises(ConfigurationError, match="encrypted"):
        Certificate.from_folder(tmp_path)


def test_a_gateway_without_a_certificate_needs_none(text, settings, pool):
    assert GatewayServer(text=text, served_name="x", settings=settings, pool=pool).http_port == 0
