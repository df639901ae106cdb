"""Comparison of an object in the cluster with the intended one, despite additions by other clients and defaults."""

from collections.abc import Mapping, Sequence
from typing import Any

_WHOLE = frozenset({"selector", "podSelector", "matchLabels"})
"""Maps that the API server keeps as one value: an additional key changes their selection."""


def covers(wanted: Any, found: Any, *, whole: bool = False) -> bool:
    """Return True if ``found`` has everything of ``wanted``.

    Maps may have more keys. Lists are compared element by element. Null or empty values of ``wanted`` may be missing,
    as API servers leave them out.
    """
    if wanted == found:  # nearly always, and much faster than looking closer
        return True
    if wanted is None or (isinstance(wanted, Mapping | list) and not wanted):
        return not found or (isinstance(found, Mapping) and not whole)
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping) or (whole and set(found) != set(wanted)):
            return False
        return all(covers(value, found.get(name), whole=whole or name in _WHOLE) for name, value in wanted.items())
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != len(wanted):
            return False
        return all(covers(ours, theirs, whole=whole) for ours, theirs in zip(wanted, found, strict=True))
    return bool(wanted == found) or (not wanted and not found)
