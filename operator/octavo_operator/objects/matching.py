"""Comparison of an object in the cluster with the intended one, despite additions by other clients and defaults."""

from collections.abc import Mapping, Sequence
from typing import Any

_WHOLE = frozenset({"selector", "podSelector", "matchLabels"})
"""Maps that the API server keeps as one value: an additional key changes their selection."""


def covers(intended: Any, live: Any, *, whole: bool = False) -> bool:
    """Return True if ``live`` has everything of ``intended``.

    Maps may have more keys. Lists are compared element by element. Null or empty values of ``intended`` may be missing,
    as API servers leave them out.
    """
    if intended == live:  # nearly always, and much faster than looking closer
        return True
    if intended is None or (isinstance(intended, Mapping | list) and not intended):
        return not live or (isinstance(live, Mapping) and not whole)
    if isinstance(intended, Mapping):
        if not isinstance(live, Mapping) or (whole and set(live) != set(intended)):
            return False
        return all(covers(value, live.get(name), whole=whole or name in _WHOLE) for name, value in intended.items())
    if isinstance(intended, Sequence) and not isinstance(intended, str):
        if not isinstance(live, Sequence) or isinstance(live, str) or len(live) != len(intended):
            return False
        return all(covers(ours, theirs, whole=whole) for ours, theirs in zip(intended, live, strict=True))
    return bool(intended == live) or (not intended and not live)
