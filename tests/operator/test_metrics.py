"""Conditions as metrics: alerts are made of them."""

from typing import Any

from octavo_operator.metrics import Metrics
from octavo_operator.model.observed import Key

KEY = Key("models", "qwen")


def status(**reasons: tuple[str, str]) -> dict[str, Any]:
    return {"conditions": [{"type": t, "status": s, "reason": r} for t, (s, r) in reasons.items()]}


def said(metrics: Metrics) -> set[tuple[str, ...]]:
    names = ("resource_namespace", "name", "type", "status", "reason")
    return {
        tuple(sample.labels[name] for name in names)
        for family in metrics.registry.collect()
        if family.name == "octavo_operator_resource_condition"
        for sample in family.samples
        if sample.value == 1
    }


def test_a_condition_says_one_thing_at_a_time() -> None:
    metrics = Metrics()
    metrics.status(KEY, status(Available=("False", "NoEndpoints"), Ready=("False", "RollingOut")))
    metrics.status(KEY, status(Available=("True", "Serving"), Ready=("False", "RollingOut")))
    assert said(metrics) == {
        ("models", "qwen", "Available", "True", "Serving"),
        ("models", "qwen", "Ready", "False", "RollingOut"),
    }


def test_a_deployment_that_is_gone_leaves_no_series() -> None:
    metrics, other = Metrics(), Key("models", "other")
    metrics.status(KEY, status(Available=("True", "Serving")))
    metrics.status(other, status(Available=("True", "Serving")))
    metrics.forget(KEY)
    metrics.forget(KEY)
    assert said(metrics) == {("models", "other", "Available", "True", "Serving")}
    metrics.forget(Key("never", "seen"))
