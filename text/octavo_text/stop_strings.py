"""Ends a text where a stop string completes, and holds back no more than what could still become one."""

from collections import deque
from collections.abc import Sequence
from typing import Self

from octavo_api.errors import InvalidRequest

MAX_STOPS = 16
MAX_STOP_CHARS = 1000


def check_stops(stops: Sequence[str], *, param: str = "stop") -> tuple[str, ...]:
    """Returns the stop strings of a request; raises ``InvalidRequest`` that names ``param``."""
    if len(stops) > MAX_STOPS:
        raise InvalidRequest.field(param, len(stops), f"at most {MAX_STOPS} strings")
    for stop in stops:
        if not isinstance(stop, str) or not 0 < len(stop) <= MAX_STOP_CHARS:
            raise InvalidRequest.field(param, stop, f"strings of 1 to {MAX_STOP_CHARS} characters")
    return tuple(stops)


class StopStrings:
    """Watches one choice's text for stop strings.

    The stop string that completes first ends the text; of several that complete at the same character, the longest.
    ``include`` leaves it in the text. A push costs time linear in its length, whatever the number of stop strings
    (Aho and Corasick, "Efficient string matching", 1975).
    """

    __slots__ = ("_automaton", "_held", "_include", "_state", "matched")

    def __init__(self, stops: tuple[str, ...], *, include: bool) -> None:
        self._automaton = _Automaton(stops)
        self._include = include
        self._reset()

    def fork(self) -> Self:
        """Returns a watcher of another choice of the same request, for nothing."""
        other = object.__new__(type(self))
        other._automaton = self._automaton
        other._include = self._include
        other._reset()
        return other

    def _reset(self) -> None:
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Returns what is safe to show of all text so far and not yet shown; nothing once a stop string has matched."""
        if self.matched is not None:
            return ""
        automaton = self._automaton
        self._state, read = automaton.run(self._state, text)
        whole = self._held + text[:read]
        if (stop := automaton.ending[self._state]) is not None:
            self.matched = stop
            self._held = ""
            return whole if self._include else whole[: len(whole) - len(stop)]
        certain = len(whole) - automaton.depth[self._state]
        self._held = whole[certain:]
        return whole[:certain]

    def flush(self) -> str:
        """Returns what was held back and did not become a stop string."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """All stop strings as one trie with failure links.

    A state is the longest suffix of the text that starts a stop string: ``depth`` is its length, which is what must be
    held back, ``ending`` the longest stop string that ends there.
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
        """Reads ``text`` up to where a stop string completes; returns the state there and the characters read."""
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
