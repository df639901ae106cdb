"""Situations in which the operator changes nothing: missing objects, an invalid spec, foreign applications."""

import copy

import pytest


@pytest.mark.parametrize(
    ("missing", "reason"),
    [({"missing_secrets": ("hub/HF_TOKEN",)}, "SecretNotFound"), ({"missing_claims": ("m",)}, "ClaimNotFound")],
)
def test_a_missing_secret_or_claim_blocks_until_it_is_created(world, missing, reason):
    w = world()
    for name, value in missing.items():
        setattr(w, name, value)
    made = w.step()
    assert made.actions == ()
    assert made.delay == 10
    assert w.condition("SpecValid") == ("False", reason)
    assert w.condition("Ready") == ("False", reason)
    assert next(iter(missing.values()))[0] in w.message("SpecValid")
    w.missing_secrets = w.missing_claims = ()
    w.settle()
    assert w.condition("SpecValid") == ("True", "Valid")
    assert w.condition("Ready") == ("True", "Serving")


def test_a_missing_secret_tears_nothing_down(serving):
    w = serving()
    w.missing_secrets = ("hub",)
    w.edit(model__secretRef={"name": "hub"}, model__uri="hf://a/b")
    for _ in range(5):
        assert w.step().actions == ()
    assert w.condition("Available") == ("True", "Serving")
    assert w.condition("Degraded") == ("True", "OldGenerationServing")
    assert "InterruptingService" not in w.reasons


def test_an_invalid_spec_touches_nothing_and_the_old_generation_serves_on(serving):
    w = serving()
    before = w.status
    w.edit(engine__blokSize=32)
    made = w.step()
    assert made.actions == ()
    assert w.condition("SpecValid") == ("False", "InvalidSpec")
    assert "did you mean" in w.message("SpecValid")
    assert w.condition("Ready") == ("False", "InvalidSpec")
    assert w.condition("Available") == ("True", "Serving")
    assert w.condition("Stalled") == ("True", "InvalidSpec")
    assert w.status["observedGeneration"] == 2
    assert w.status["configHash"] == before["configHash"]
    assert w.reasons == ["InvalidSpec"]
    w.step()
    assert w.reasons == ["InvalidSpec"], "said once"
    w.edit(engine__blokSize=None)
    w.settle()
    assert w.condition("Ready") == ("True", "Serving")
    assert w.reasons == ["InvalidSpec", "RolloutComplete"], "nothing was deployed again"


def test_an_application_of_another_owner_is_not_touched(world):
    w = world()
    w.step()
    w.head_up()
    w.step()
    w.app.config["args"]["owner"] = "shop/other"
    w.forget()
    made = w.step()
    assert made.actions == ()
    assert w.condition("ApplicationReady") == ("False", "ApplicationNameConflict")
    assert w.condition("Stalled") == ("True", "ApplicationNameConflict")
    assert w.condition("Available")[0] == "False"


def test_a_namespace_that_ends_is_left_alone(serving):
    w = serving()
    w.terminating = True
    w.remove_children()
    before = copy.deepcopy(w.status)
    made = w.step()
    assert made.actions == ()
    assert w.status == before


def test_a_managed_deletion_needs_nothing(serving):
    w = serving()
    w.delete()
    made = w.step()
    assert made.actions == ()
    assert made.events == ()
