"""A deployment's life in pods: installed, applied, asked, edited, deleted."""

import json
import time
from collections.abc import Iterator

import grpc
import httpx
import pytest

from octavo_api.v1 import inference_pb2, inference_pb2_grpc
from octavo_testing.kube.serving import complete
from octavo_testing.node import pods
from octavo_testing.node.node import Node
from octavo_testing.node.pods import InPods
from octavo_testing.streams import Stream
from octavo_testing.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]
NAMESPACE = "life"


@pytest.fixture(scope="module")
def books(installed: Node) -> Iterator[InPods]:
    began = time.monotonic()
    serving = pods.serve(installed, NAMESPACE, pods.small())
    serving.wait_ready(300)
    print(f"kubectl apply to Ready: {time.monotonic() - began:.1f} s")
    yield serving
    pods.end(serving)


def test_tokens_come_through_the_service_by_http_and_by_grpc(books: InPods) -> None:
    assert complete(books.base, "books")
    with grpc.insecure_channel(f"{books.address}:9000") as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        request = inference_pb2.GenerateRequest(model="books", text="Once", sampling={"max_tokens": 8})
        parts = list(stub.GenerateStream(request, timeout=60))
    assert "".join(choice.text for part in parts for choice in part.choices)


def test_no_replica_is_in_the_heads_pod(books: InPods) -> None:
    found = json.loads(books.applications())["applications"]["books"]["deployments"]
    addresses = {replica["node_ip"] for each in found.values() for replica in each["replicas"]}
    workers = [*books.pods("gateway"), *books.pods("engine")]
    assert addresses == {books.kubectl.get("pod", name)["status"]["podIP"] for name in workers}


def test_a_requests_life_is_in_the_logs_of_gateway_and_engine(books: InPods) -> None:
    (gateway,), (engine,) = books.pods("gateway"), books.pods("engine")
    complete(books.base, "books")
    for pod in (gateway, engine):
        eventually("kubectl logs shows it", lambda pod=pod: "request ended: length" in books.log(pod), timeout_s=20)
    assert "Once upon a time" not in books.log(gateway) + books.log(engine)


def test_a_live_edit_keeps_every_pod(books: InPods) -> None:
    before = books.pods("gateway") | books.pods("engine") | books.pods("head")
    began = time.monotonic()
    books.edit({"model": {"servedName": "volumes"}})
    books.wait_ready()
    eventually("the new name answers", lambda: _answers(books, "volumes"))
    print(f"live edit: {time.monotonic() - began:.1f} s")
    assert books.pods("gateway") | books.pods("engine") | books.pods("head") == before


def test_a_rolling_edit_of_the_only_engine_cuts_no_stream(books: InPods) -> None:
    stream = Stream(books.base, "volumes", "Once upon a time", 600).begin()
    (before,) = books.pods("engine")
    began = time.monotonic()
    books.edit({"engine": {"maxNumSeqs": 8}})
    books.wait_ready(240)
    print(f"rolling edit: {time.monotonic() - began:.1f} s")
    stream.join()
    assert stream.error is None
    assert complete(books.base, "volumes")
    assert set(books.pods("engine")) - {before}, "the new engine came up beside the old one"


def test_a_deletion_leaves_nothing(books: InPods) -> None:
    print(f"gone: {books.delete():.1f} s, all of it: {pods.wait_until_nothing_is_left(books, 180):.1f} s later")


def _answers(books: InPods, model: str) -> bool:
    try:
        return bool(complete(books.base, model, max_tokens=1))
    except httpx.HTTPError:
        return False
