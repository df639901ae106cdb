"""What somebody did by hand to objects of the operator is set right; each was found by the fault sweep."""

import asyncio
from collections.abc import Callable
from typing import Any

from octavo_operator.model import names
from octavo_operator.model.observed import Key
from octavo_testing.operator.sweep.apiserver import Document, ObjectKey
from octavo_testing.operator.sweep.checks import conditions
from octavo_testing.operator.sweep.run import Run, arrived, settle, simulate
from octavo_testing.operator.sweep.steps import NAMES, Actor

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


def test_a_deleted_token_recreates_the_cluster() -> None:
    for strategy in ("InPlace", "NewCluster"):
        before: list[str] = []

        def delete(run: Run, before: list[str] = before) -> None:
            before.extend(cluster.uid for cluster in run.world.clusters(*KEY))
            run.world.api.delete("Secret", KEY.namespace, names.token_secret(KEY))

        run = run_by_hand(delete, rollout={"strategy": strategy})
        (cluster,) = run.world.clusters(*KEY)
        assert cluster.uid not in before
        assert any("creates the cluster again" in message for message in events(run, "InterruptingService"))


def foreign_service(run: Run) -> ObjectKey:
    key = ObjectKey("Service", KEY.namespace, names.service(KEY))
    run.world.take_name(key, replace=True)
    return key


def ready(run: Run) -> tuple[str, str]:
    (document,) = run.world.api.every("ServingDeployment")
    found = conditions(document)["Ready"]
    return found["status"], found["reason"]


def test_a_foreign_service_blocks_ours_until_it_is_deleted() -> None:
    async def play(run: Run, actor: Actor) -> None:
        key = foreign_service(run)
        theirs = run.world.api.get(*key)
        run.world.create(*KEY, {"model": {"uri": "embedded://smollm2"}})
        await settle(run)
        assert ready(run) == ("False", "ObjectNameConflict")
        assert run.world.api.get(*key) == theirs
        assert not run.world.clusters(*KEY), "nothing is paid for that cannot be reached"
        run.world.give_names_back()
        await settle(run)
        assert ready(run) == ("True", "Serving")

    run = simulate(5, (False,), play)
    assert not run.violations, run.report()
    (said,) = events(run, "ObjectNameConflict")
    assert "Service books" in said


def test_a_foreign_service_in_place_of_ours_stops_nothing() -> None:
    before: list[str] = []

    def take(run: Run) -> None:
        before.extend(cluster.uid for cluster in run.world.clusters(*KEY))
        foreign_service(run)

    run = run_by_hand(take)
    assert ready(run) == ("False", "ObjectNameConflict")
    assert [cluster.uid for cluster in run.world.clusters(*KEY)] == before


def test_a_service_that_is_labelled_is_handed_over() -> None:
    async def play(run: Run, actor: Actor) -> None:
        key = foreign_service(run)
        theirs = run.world.api.objects[key]["metadata"]["uid"]
        run.world.create(*KEY, {"model": {"uri": "embedded://smollm2"}})
        await settle(run)
        run.world.theirs.clear()
        run.world.api.edit(*key, lambda found: found["metadata"]["labels"].update({names.DEPLOYMENT_LABEL: KEY.name}))
        await settle(run)
        assert ready(run) == ("True", "Serving")
        assert run.world.api.objects[key]["metadata"]["uid"] == theirs
        assert service_ports(run) == [("http", 8000), ("grpc", 9000)]

    run = simulate(5, (False,), play)
    assert not run.violations, run.report()


def test_objects_of_an_orphaning_deletion_are_adopted_by_name() -> None:
    kinds = ("RayCluster", "Service", "PodDisruptionBudget", "NetworkPolicy", "Secret")

    def children(run: Run) -> dict[str, str]:
        found = [child for kind in kinds for child in run.world.api.every(kind, KEY.namespace)]
        return {child["kind"]: child["metadata"]["uid"] for child in found}

    async def play(run: Run, actor: Actor) -> None:
        spec = {
            "model": {"uri": "embedded://smollm2"},
            "replicas": 2,
            "rayCluster": {"managed": {"networkPolicy": True}},
        }
        run.world.create(*KEY, spec)
        await arrived(run)
        before = children(run)
        for kind in kinds:
            run.world.edit_child(kind, *KEY, lambda child: child["metadata"].pop("ownerReferences"))
        run.world.delete(*KEY)
        await asyncio.sleep(60)
        assert children(run) == before
        run.world.create(*KEY, spec)
        await arrived(run)
        assert children(run) == before, "nothing is made anew"
        owner = next(run.world.api.every("ServingDeployment"))["metadata"]["uid"]
        for kind in set(kinds) - {"Secret"}:  # which the operator has no right to change
            (child,) = run.world.api.every(kind, KEY.namespace)
            assert [one["uid"] for one in child["metadata"]["ownerReferences"]] == [owner]

    run = simulate(5, (False,), play)
    assert not run.violations, run.report()


def test_what_lost_our_label_and_has_our_owner_is_labelled_again() -> None:
    for kind in ("Service", "RayCluster", "PodDisruptionBudget"):
        before: list[str] = []

        def change(child: Document, before: list[str] = before) -> None:
            before.append(child["metadata"]["uid"])
            del child["metadata"]["labels"][names.DEPLOYMENT_LABEL]

        run = run_by_hand(edited(kind, change), replicas=2)
        (child,) = run.world.api.every(kind, KEY.namespace)
        assert [child["metadata"]["uid"]] == before
        assert child["metadata"]["labels"][names.DEPLOYMENT_LABEL] == KEY.name
        assert ready(run) == ("True", "Serving")


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
