"""Snapshot of an installation without values, so that a review sees every change of it."""

import os
from collections.abc import Callable
from pathlib import Path

SNAPSHOT = Path(__file__).with_name("default.snapshot.yaml")


def test_the_default_rendering_is_the_committed_one(texts: Callable[..., dict[str, str]]) -> None:
    """``OCTAVO_UPDATE_SNAPSHOTS=1`` writes it again."""
    # The resource definition has a test of its own against the types.
    parts = {name: text.strip() for name, text in texts().items() if not name.startswith("crds/")}
    found = "".join(f"# {name}\n{text}\n" for name, text in sorted(parts.items()) if text)
    if os.environ.get("OCTAVO_UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(found)
    assert found == SNAPSHOT.read_text(), (
        "if the change is intended: OCTAVO_UPDATE_SNAPSHOTS=1 pytest tests/helm writes it again"
    )
