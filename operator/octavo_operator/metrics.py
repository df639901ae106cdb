"""The operator's own metrics, in a registry of their own."""

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from octavo_operator.model.observed import Key, Observed, Reach

_DRIFT_REASONS = ("DriftCorrected", "ServeConfigRestored")
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Metrics of the operator. All names start with ``octavo_operator_``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        common: dict[str, Any] = {"namespace": "octavo_operator", "registry": self.registry}
        self._reconciles = Counter(
            "reconcile_total", "Reconciles, by result: ok, gone, or the reason of a failure.", ["result"], **common
        )
        self._seconds = Histogram(
            "reconcile_duration_seconds", "Duration of one reconcile.", buckets=_BUCKETS, **common
        )
        self._ready = Gauge(
            "resource_ready",
            "1 if the deployment's condition Ready is True, else 0.",
            ["resource_namespace", "name"],
            **common,
        )
        self._conditions = Gauge(
            "resource_condition",
            "1 for the current status and reason of each condition of a deployment. Other combinations have no series.",
            ["resource_namespace", "name", "type", "status", "reason"],
            **common,
        )
        self._series: dict[Key, set[tuple[str, ...]]] = {}
        """Label values of the conditions' series, by deployment."""
        self._ray_errors = Counter(
            "ray_api_errors_total", "Failed requests to a Ray dashboard, by kind of failure.", ["reach"], **common
        )
        self._drift = Counter(
            "drift_corrections_total", "Changes by other clients that the operator reverted.", **common
        )
        self.queue_depth = Gauge("queue_depth", "Deployments that are due or being reconciled.", **common)
        self.queue_lag = Gauge(
            "queue_lag_seconds", "Seconds that the oldest due or running reconcile has waited or run.", **common
        )
        self.watch_age = Gauge(
            "watch_age_seconds",
            "Seconds since the last event or bookmark of a watch, by resource.",
            ["resource"],
            **common,
        )

    def reconciled(self, result: str, seconds: float) -> None:
        self._reconciles.labels(result).inc()
        self._seconds.observe(seconds)

    def observed(self, observed: Observed) -> None:
        for serve in observed.serve.values():
            if serve.reach is not Reach.OK:
                self._ray_errors.labels(serve.reach.value).inc()

    def event(self, reason: str) -> None:
        if reason in _DRIFT_REASONS:
            self._drift.inc()

    def status(self, key: Key, status: Mapping[str, Any]) -> None:
        conditions = status.get("conditions") or ()
        ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
        self._ready.labels(key.namespace, key.name).set(ready)
        series: set[tuple[str, ...]] = {
            (*key, str(c.get("type")), str(c.get("status")), str(c.get("reason"))) for c in conditions
        }
        self._replace_series(key, series)

    def forget(self, key: Key) -> None:
        self._replace_series(key, set())
        del self._series[key]
        try:
            self._ready.remove(key.namespace, key.name)
        except KeyError:
            return

    def _replace_series(self, key: Key, series: set[tuple[str, ...]]) -> None:
        for labels in self._series.get(key, set()) - series:
            self._conditions.remove(*labels)
        for labels in series:
            self._conditions.labels(*labels).set(1)
        self._series[key] = series

    def render(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)
