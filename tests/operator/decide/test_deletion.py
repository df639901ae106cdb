"""Deletion in external mode: remove the application, and end at the latest at the deadline."""

import pytest

from octavo_operator.model.actions import RemoveApplication, SetFinalizer
from octavo_operator.model.observed import Reach

ADDRESS = "http://ray.example:8265"


def test_deletion_removes_the_application_waits_and_releases(serving):
    w = serving(external=True)
    w.delete()
    assert w.step().actions == (RemoveApplication(ADDRESS, "shop.qwen"),)
    assert w.step().actions == ()
    w.run_apps()
    assert w.step().actions == (SetFinalizer(False),)
    assert w.events == []


def test_deletion_with_ray_down_ends_at_the_deadline_with_an_event(serving):
    w = serving(external=True)
    w.ray.reach = Reach.UNREACHABLE
    w.delete()
    while w.now < w.deleted_at + 300:
        assert w.step().actions == ()
    assert w.step().actions == (SetFinalizer(False),)
    assert w.reasons == ["CleanupAbandoned"]
    assert ADDRESS in w.events[0].message


def test_the_force_delete_annotation_ends_it_at_once(serving):
    w = serving(external=True)
    w.ray.reach = Reach.UNREACHABLE
    w.delete()
    w.annotations["serving.octavo.dev/force-delete"] = "true"
    assert w.step().actions == (SetFinalizer(False),)
    assert w.reasons == ["CleanupAbandoned"]


def test_forced_deletion_removes_the_application_in_one_try(serving):
    w = serving(external=True)
    w.delete()
    w.annotations["serving.octavo.dev/force-delete"] = "true"
    remove, release = w.step().actions
    assert (remove.address, remove.name) == (ADDRESS, "shop.qwen")
    assert remove.event_on_failure.reason == "CleanupAbandoned"
    assert release == SetFinalizer(False)
    assert w.events == [], "only a failure has an event"


def test_deletion_tries_once_more_at_the_deadline(serving):
    w = serving(external=True)
    w.delete()
    w.tick(300)
    remove, release = w.step().actions
    assert remove.event_on_failure is not None
    assert release == SetFinalizer(False)


def test_a_token_lost_with_its_namespace_ends_the_deletion_at_once(serving):
    w = serving(external=True)
    w.ray.reach = Reach.AUTH_FAILED
    w.missing_secrets = ("ray-token",)
    w.delete()
    assert w.step().actions == (), "a user may create the Secret again"
    w.terminating = True
    assert w.step().actions == (SetFinalizer(False),)
    (event,) = w.events
    assert event.reason == "CleanupAbandoned"
    for said in ("shop.qwen", ADDRESS, "Secret ray-token"):
        assert said in event.message


def test_orphan_leaves_the_application(serving):
    w = serving(external=True)
    w.edit(deletionPolicy="Orphan")
    w.settle()
    w.forget()
    w.delete()
    assert w.step().actions == (SetFinalizer(False),)
    assert w.app.status == "RUNNING"
    assert w.events == []


def test_streams_longer_than_the_deadline_are_not_called_abandoned(serving):
    w = serving(external=True)
    w.delete()
    w.step()
    w.tick(300)
    assert w.step().actions == (SetFinalizer(False),)
    assert w.events == []


def test_deletion_of_a_spec_that_is_not_understood_still_cleans_up(serving):
    w = serving(external=True)
    w.edit(engine__newerField=1)
    w.delete()
    assert w.step().actions == (RemoveApplication(ADDRESS, "shop.qwen"),)


@pytest.mark.parametrize("reach", list(Reach))
def test_deletion_always_ends(serving, reach):
    w = serving(external=True)
    w.ray.reach = reach
    w.delete()
    for _ in range(200):
        if SetFinalizer(False) in w.step().actions:
            return
    raise AssertionError("never released")


def test_a_released_deployment_has_an_empty_plan(serving):
    w = serving(external=True)
    w.finalizers.clear()
    w.delete()
    assert w.step().actions == ()
