"""Whether an object in the cluster still says what was asked for, beside what others and defaults added to it."""

from collections.abc import Mapping, Sequence
from typing import Any

_WHOLE = frozenset({"selector", "podSelector", "matchLabels"})
"""Maps that the API server keeps as one value: a key more changes what they select."""


def covers(wanted: Any, found: Any, *, whole: bool = False) -> bool:
    """Whether ``found`` has everything of ``wanted``. Maps may have more keys, lists are compared element by element.

    What is null or empty in ``wanted`` may be left out, as API servers do.
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
