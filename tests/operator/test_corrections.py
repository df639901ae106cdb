"""What somebody did by hand to objects of the operator is set right; each was found by the fault sweep."""

from collections.abc import Callable
from typing import Any

from octavo_operator import names
from octavo_operator.observed import Key

from .sweep.apiserver import Document, ObjectKey
from .sweep.run import Run, arrived, settle, simulate
from .sweep.steps import NAMES, Actor

KEY = Key(*NAMES[0])


def run_by_hand(spoil: Callable[[Run], None], **spec: Any) -> Run:
    """A managed deployment is up, ``spoil`` is done to it, and it comes to rest again."""

    async def play(run: Run, actor: Actor) -> None:
        run.world.create(*KEY, {"model": {"uri": "embedded://smollm2"}, **spec})
        await arrived(run)
        spoil(run)
        await settle(run)

    run = simulate(5, (False,), play)
    assert not run.violations, run.report()
    return run


def edited(kind: str, change: Callable[[Document], None]) -> Callable[[Run], None]:
    return lambda run: run.world.edit_child(kind, *KEY, change)


def events(run: Run, reason: str) -> list[str]:
    return [event["message"] for event in run.world.recorded if event["reason"] == reason]


def service_ports(run: Run) -> list[tuple[str, int]]:
    service = run.world.api.objects[ObjectKey("Service", KEY.namespace, names.service(KEY))]
    return [(port["name"], port["port"]) for port in service["spec"]["ports"]]


def test_a_port_that_was_added_to_the_service_is_taken_away() -> None:
    def add(service: Document) -> None:
        service["spec"]["ports"].append({"name": "debug", "port": 5000, "protocol": "TCP", "targetPort": 5000})

    run = run_by_hand(edited("Service", add))
    assert service_ports(run) == [("http", 8000), ("grpc", 9000)]
    assert len(events(run, "DriftCorrected")) == 1


def test_a_changed_port_is_set_back_although_its_name_is_taken() -> None:
    """The changed one is somebody else's now, so applying ours would make two of one name, which is refused."""

    def change(service: Document) -> None:
        service["spec"]["ports"][0]["port"] = 81

    assert service_ports(run_by_hand(edited("Service", change))) == [("http", 8000), ("grpc", 9000)]


def test_a_deleted_token_makes_the_cluster_again_because_it_can_not_be_told_anything() -> None:
    for strategy in ("InPlace", "NewCluster"):
        before: list[str] = []

        def delete(run: Run, before: list[str] = before) -> None:
            before.extend(cluster.uid for cluster in run.world.clusters(*KEY))
            run.world.api.delete("Secret", KEY.namespace, names.token_secret(KEY))

        run = run_by_hand(delete, rollout={"strategy": strategy})
        (cluster,) = run.world.clusters(*KEY)
        assert cluster.uid not in before
        assert any("made again" in message for message in events(run, "InterruptingService"))


def test_a_cluster_without_its_label_is_the_same_cluster() -> None:
    before: list[str] = []

    def change(cluster: Document) -> None:
        before.append(cluster["metadata"]["uid"])
        cluster["metadata"]["labels"][names.HASH_LABEL] = "0" * 16

    for strategy in ("InPlace", "NewCluster"):
        run = run_by_hand(edited("RayCluster", change), rollout={"strategy": strategy})
        (cluster,) = run.world.clusters(*KEY)
        assert cluster.uid in before
        assert cluster.document is not None
        assert cluster.key.name.endswith(cluster.document["metadata"]["labels"][names.HASH_LABEL][:8])
