"""Metrics of a gateway: families, collectors, and the generator of ``docs/reference/metrics.md``.

Engines send totals over their streams. A replica's series end when the replica is removed. Each gateway has one
registry. The process has none.
"""

from octavo_router.metrics.gateway_metrics import Metrics

__all__ = ["Metrics"]
