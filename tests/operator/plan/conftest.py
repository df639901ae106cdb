from collections.abc import Callable, Mapping
from typing import Any

import pytest

from octavo_testing.operator.plan_world import PlanWorld


@pytest.fixture(scope="session")
def world() -> Callable[..., PlanWorld]:
    return PlanWorld


@pytest.fixture
def serving() -> Callable[..., PlanWorld]:
    """Return a deployment that serves and is at rest."""

    def create(spec: Mapping[str, Any] | None = None, *, external: bool = False) -> PlanWorld:
        created = PlanWorld(spec, external=external)
        created.settle()
        assert created.condition("Ready")[0] == "True", created.status
        created.forget()
        return created

    return create
