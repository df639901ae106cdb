"""The oracle is a search over the whole text."""

import random
from itertools import pairwise

import pytest

from octavo_api.errors import InvalidRequest
from octavo_text import MAX_STOP_CHARS, MAX_STOPS, StopStrings, check_stops

SEEDS = range(2000)


def draw(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    """Return a text and stop strings; two letters make overlaps and near misses common."""
    text = "".join(rng.choices("ab", k=rng.randint(0, 30)))
    longest, most = rng.randint(1, 5), rng.choice((1, 2, 4, MAX_STOPS))
    stops = tuple("".join(rng.choices("ab", k=rng.randint(1, longest))) for _ in range(rng.randint(1, most)))
    return text, stops


def naive(text: str, stops: tuple[str, ...], first_end: int = 1) -> tuple[int, str] | None:
    """Return the position where the first stop string completes, and the longest stop string there."""
    for end in range(first_end, len(text) + 1):
        if ending := [stop for stop in stops if text[:end].endswith(stop)]:
            return end, max(ending, key=len)
    return None


def pieces(text: str, cuts: list[int]) -> list[str]:
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(ends)]


def test_shows_the_text_up_to_the_first_stop_string() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        text, stops = draw(rng)
        cuts, include = rng.choices(range(31), k=rng.randint(0, 8)), rng.random() < 0.5
        watch = StopStrings(stops, include=include)
        shown = "".join(watch.push(piece) for piece in pieces(text, cuts))
        found = naive(text, stops)
        if found is None:
            assert watch.matched is None, seed
            assert shown + watch.flush() == text, seed
        else:
            end, stop = found
            assert watch.matched == stop, seed
            assert shown == (text[:end] if include else text[: end - len(stop)]), seed
            assert watch.flush() == "", seed


def test_a_stop_string_that_completes_too_early_is_text() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        text, stops = draw(rng)
        cuts = rng.choices(range(31), k=rng.randint(1, 8))
        boundary = min(rng.choice(cuts), len(text))
        watch = StopStrings(stops, include=False)
        shown, read = "", 0
        for piece in pieces(text, [*cuts, boundary]):
            shown += watch.push(piece, may_end=read >= boundary)
            shown += watch.push("", may_end=rng.random() < 0.5)  # a token of half a character
            read += len(piece)
        found = naive(text, stops, boundary + 1)
        assert watch.matched == (found and found[1]), seed
        assert shown + watch.flush() == (text if found is None else text[: found[0] - len(found[1])]), seed


def test_holds_back_what_could_become_a_stop_string_and_no_more() -> None:
    for seed in SEEDS:
        text, stops = draw(random.Random(seed))
        watch = StopStrings(stops, include=False)
        shown = ""
        for position, character in enumerate(text):
            shown += watch.push(character)
            if watch.matched is not None:
                break
            so_far = text[: position + 1]
            could = [n for n in range(1, len(so_far) + 1) if any(s.startswith(so_far[-n:]) for s in stops)]
            assert so_far == shown + so_far[len(so_far) - max(could, default=0) :], seed


@pytest.mark.parametrize("size", range(1, 7))
def test_stop_string_over_many_tokens(size: int) -> None:
    text = "say it\n\nUser: now"
    watch = StopStrings(("\n\nUser:",), include=False)
    shown = [watch.push(text[at : at + size]) for at in range(0, len(text), size)]
    assert "".join(shown) == "say it"
    assert watch.matched == "\n\nUser:"


def test_nothing_is_shown_after_a_match() -> None:
    watch = StopStrings(("b",), include=True)
    assert watch.push("abc") == "ab"
    assert watch.push("def") == ""
    assert watch.flush() == ""


def test_stop_string_that_completes_first_wins_whatever_started_first() -> None:
    watch = StopStrings(("a long one", "on"), include=False)
    assert watch.push("a long one") == "a l"
    assert watch.matched == "on"


def test_of_stop_strings_that_end_together_the_longest_wins() -> None:
    for stops in (("end", "the end"), ("the end", "end")):
        watch = StopStrings(stops, include=False)
        assert watch.push("at the end.") == "at "
        assert watch.matched == "the end"


def test_without_stop_strings_everything_is_shown_at_once() -> None:
    watch = StopStrings((), include=False)
    assert watch.push("abc") == "abc"
    assert watch.flush() == ""


def test_forks_share_nothing_that_changes() -> None:
    one = StopStrings(("stop",), include=False)
    assert one.push("st") == ""
    two = one.fork()
    assert two.push("op!") == "op!"
    assert one.push("op") == ""
    assert (one.matched, two.matched) == ("stop", None)


def test_work_is_linear_in_the_text_whatever_the_stop_strings() -> None:
    """Counts transitions: periodic stop strings are the worst case of a naive search."""
    stops = tuple("a" * (MAX_STOP_CHARS - k) + "b" for k in range(MAX_STOPS))
    watch = StopStrings(stops, include=False)
    automaton = watch._automaton

    class Counted(list):
        reads = 0

        def __getitem__(self, index):
            Counted.reads += 1
            return super().__getitem__(index)

    automaton._failure = Counted(automaton._failure)
    text = ("a" * (MAX_STOP_CHARS - MAX_STOPS) + "c") * 5
    for character in text:
        watch.push(character)
    assert Counted.reads <= len(text)


@pytest.mark.parametrize(
    ("stops", "says"),
    [
        ([""], "stop: got '', allowed: strings of 1 to 1000 characters"),
        (["x" * 1001], "allowed: strings of 1 to 1000 characters"),
        (["x", 3], "stop: got 3, allowed: strings of 1 to 1000 characters"),
        (["x"] * 17, "stop: got 17, allowed: at most 16 strings"),
    ],
)
def test_limits(stops, says) -> None:
    with pytest.raises(InvalidRequest) as error:
        check_stops(stops)
    assert says in error.value.message
    assert error.value.param == "stop"


def test_allowed_stops_pass() -> None:
    check_stops(["x" * MAX_STOP_CHARS] * MAX_STOPS)
    check_stops([])
