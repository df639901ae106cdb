"""End of a text at a complete stop string. It holds back only the text that could still become one."""

from collections import deque
from collections.abc import Sequence
from typing import Self

from octavo_api.errors import InvalidRequest

MAX_STOPS = 16
MAX_STOP_CHARS = 1000


def check_stops(stops: Sequence[str]) -> None:
    """Check the stop strings of a request. Raise ``InvalidRequest``."""
    if len(stops) > MAX_STOPS:
        raise InvalidRequest.field("stop", len(stops), f"at most {MAX_STOPS} strings")
    for stop in stops:
        if not isinstance(stop, str) or not 0 < len(stop) <= MAX_STOP_CHARS:
            raise InvalidRequest.field("stop", stop, f"strings of 1 to {MAX_STOP_CHARS} characters")


class StopStrings:
    """Search for stop strings in one choice's text.

    The stop string that completes first ends the text. If several complete at the same character, the longest
    counts. ``include`` leaves it in the text. A push costs time linear in its length, for any number of stop
    strings (Aho and Corasick, "Efficient string matching", 1975).
    """

    __slots__ = ("_automaton", "_held", "_include", "_state", "matched")

    def __init__(self, stops: tuple[str, ...], *, include: bool) -> None:
        self._automaton = _Automaton(stops)
        self._include = include
        self._reset()

    def fork(self) -> Self:
        """Return a watcher of another choice of the same request, at no cost."""
        other = object.__new__(type(self))
        other._automaton = self._automaton
        other._include = self._include
        other._reset()
        return other

    def _reset(self) -> None:
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, *, may_end: bool = True) -> str:
        """Return the new text that is safe to show. Return an empty string after a stop string has matched.

        Without ``may_end``, a stop string that completes in ``text`` does not count.
        """
        if self.matched is not None:
            return ""
        automaton = self._automaton
        self._state, read = automaton.run(self._state, text)
        while read < len(text) and not may_end:
            self._state, count = automaton.run(self._state, text[read:])
            read += count
        whole = self._held + text[:read]
        if may_end and text and (stop := automaton.ending[self._state]) is not None:
            self.matched = stop
            self._held = ""
            return whole if self._include else whole[: len(whole) - len(stop)]
        certain = len(whole) - automaton.depth[self._state]
        self._held = whole[certain:]
        return whole[:certain]

    def flush(self) -> str:
        """Return the text that was held back and did not become a stop string."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """All stop strings as one trie with failure links.

    A state is the longest suffix of the text that starts a stop string. ``depth`` is the length of that suffix,
    which must be held back. ``ending`` is the longest stop string that ends there.
    """

    __slots__ = ("_children", "_failure", "depth", "ending")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._children: list[dict[str, int]] = [{}]
        self._failure = [0]
        self.depth = [0]
        self.ending: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._link()

    def run(self, state: int, text: str) -> tuple[int, int]:
        """Read ``text`` until a stop string completes. Return the state there and the number of characters read."""
        children, failure, ending = self._children, self._failure, self.ending
        for position, character in enumerate(text):
            while (following := children[state].get(character)) is None and state:
                state = failure[state]
            state = following or 0
            if ending[state] is not None:
                return state, position + 1
        return state, len(text)

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            child = self._children[state].get(character)
            if child is None:
                child = len(self._children)
                self._children[state][character] = child
                self._children.append({})
                self._failure.append(0)
                self.depth.append(self.depth[state] + 1)
                self.ending.append(None)
            state = child
        self.ending[state] = stop

    def _link(self) -> None:
        queue = deque(self._children[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._children[state].items():
                self._failure[child] = self.run(self._failure[state], character)[0]
                queue.append(child)
            if self.ending[state] is None:
                self.ending[state] = self.ending[self._failure[state]]
