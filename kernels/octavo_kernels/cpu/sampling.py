"""Penalties, arg-max, Gumbel-max sampling and log probabilities over rows of fp32 logits.

No row is sorted whole. The noise of a token lies in a known interval. So a token never wins if its logit is further
below the best sum so far than the noise can reach. Sampling passes over most of a vocabulary without a random number.
"""

import math
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from octavo_kernels.cpu.exponential import exp
from octavo_kernels.cpu.jit import jit
from octavo_kernels.cpu.memory import Floats
from octavo_kernels.cpu.pool import job, launch
from octavo_kernels.cpu.random import fill_words, gumbel, words_at

_MINUS_INFINITY = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_MAX_GUMBEL = np.float32(17.4)  # -log(-log(1 - 2**-25)) is 17.33
_LANES = 64  # independent maxima and sums, so that LLVM vectorises them in an order that is fixed here
_BLOCK = 256
_WORDS, _PER_WORD = np.uint64(1 << 32), np.float32(2.0**-32)
_SLACK = np.float32(1.001)  # over the rounding of exp and of the sums
_SPAN = np.float32(5.0)  # first guess at how far below the best logit the kept ones reach, in temperatures
_WIDER = np.float32(2.0)


Ids: TypeAlias = NDArray[np.int32]


class Draws(NamedTuple):
    """The arrays of a ``SamplingBatch``."""

    rows: NDArray[np.int32]
    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    seeds: NDArray[np.int64]
    choices: NDArray[np.int32]
    positions: NDArray[np.int64]


class Penalties(NamedTuple):
    """The arrays of a ``LogitsPenalties``."""

    rows: NDArray[np.int32]
    repetition: NDArray[np.float32]
    presence: NDArray[np.float32]
    frequency: NDArray[np.float32]
    token_ids: Ids
    history_rows: NDArray[np.int32]
    prompt_lens: NDArray[np.int32]
    num_tokens: NDArray[np.int32]
    bias_start: NDArray[np.int32]
    bias_ids: Ids
    bias_values: NDArray[np.float32]


@jit()
def largest(row: Floats) -> np.float32:
    """Return the largest number of a row; ignore NaN."""
    best = np.full(_LANES, _MINUS_INFINITY)
    whole = len(row) // _LANES * _LANES
    for start in range(0, whole, _LANES):
        for j in range(_LANES):
            value = row[start + j]
            best[j] = value if value > best[j] else best[j]
    top = _MINUS_INFINITY
    for j in range(_LANES):
        top = max(top, best[j])
    for j in range(whole, len(row)):
        top = row[j] if row[j] > top else top
    return top


@jit()
def _first_of(row: Floats, value: np.float32) -> int:
    for j in range(len(row)):
        if row[j] == value:
            return j
    return 0


@jit()
def _argmax_row(logits: Floats, out: NDArray[np.int64], r: int) -> None:
    """Write the first index of the largest logit of row ``r``."""
    out[r] = _first_of(logits[r], largest(logits[r]))


@jit()
def argmax(pool: int, logits: Floats, out: NDArray[np.int64]) -> None:
    launch(pool, len(logits), job(_argmax_row, (logits, out)))


@jit()
def _above(row: Floats, floor: np.float32, ids: Ids) -> int:
    """Write the indices of the logits >= ``floor`` to ``ids``; return their number.

    Skips stretches without such a logit.
    """
    count = 0
    for start in range(0, len(row), _LANES):
        end = min(start + _LANES, len(row))
        hits = 0
        for j in range(start, end):
            hits += 1 if row[j] >= floor else 0
        if hits > 0:
            for j in range(start, end):
                if row[j] >= floor:
                    ids[count] = j
                    count += 1
    return count


@jit()
def _mass(row: Floats, floor: np.float32, top: np.float32, temperature: np.float32) -> float:
    """Return the sum of ``exp((logit - top) / temperature)`` over the logits >= ``floor``, in fp64, in fixed order."""
    parts, factor = np.zeros(_LANES, np.float64), _ONE / temperature
    for start in range(0, len(row), _LANES):
        for j in range(min(_LANES, len(row) - start)):
            logit = row[start + j]
            parts[j] += np.float64(exp((logit - top) * factor) if logit >= floor else _ZERO)
    total = 0.0
    for j in range(_LANES):
        total += parts[j]
    return total


@jit()
def _before(row: Floats, a: int, b: int) -> bool:
    """Return True if token ``a`` ranks before ``b``: by logit, equals by lower id."""
    return row[a] > row[b] or (row[a] == row[b] and a < b)


@jit()
def _sift(row: Floats, ids: Ids, size: int, place: int) -> None:
    """Restore a heap (best on top) of which only ``place`` may be wrong."""
    token = ids[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _before(row, ids[child + 1], ids[child]):
            child += 1
        if not _before(row, ids[child], token):
            break
        ids[place] = ids[child]
        place = child
    ids[place] = token


@jit()
def _best_first(
    row: Floats, floor: np.float32, top: np.float32, span: np.float32, wanted: int, ids: Ids
) -> tuple[int, np.float32]:
    """Build a heap of the tokens with the largest logits >= ``floor``: at least ``wanted`` of them, or all.

    Returns their number and the lower bound of their logits.
    """
    while True:
        low = max(floor, top - span)
        count = _above(row, low, ids)
        if count >= wanted or low <= floor:
            for place in range(count // 2 - 1, -1, -1):
                _sift(row, ids, count, place)
            return count, low
        span *= _WIDER


@jit()
def _pop(row: Floats, ids: Ids, size: int) -> np.int32:
    """Move the best token of the heap behind the heap's new end, to place ``size - 1``, and return it."""
    token: np.int32 = ids[0]
    ids[0] = ids[size - 1]
    ids[size - 1] = token
    _sift(row, ids, size - 1, 0)
    return token


@jit()
def _kth_largest(row: Floats, floor: np.float32, top: np.float32, span: np.float32, k: int, ids: Ids) -> np.float32:
    """Return the k-th largest of the logits >= ``floor``, or ``floor`` if there are fewer."""
    size, _ = _best_first(row, floor, top, span, k, ids)
    if size < k:
        return floor
    token = np.int32(0)
    for n in range(k):
        token = _pop(row, ids, size - n)
    value: np.float32 = row[token]
    return value


@jit()
def _nucleus(
    row: Floats, floor: np.float32, top: np.float32, temperature: np.float32, top_p: np.float32, ids: Ids
) -> tuple[int, int]:
    """Select the tokens that top_p keeps among the logits >= ``floor``; return their range of ``ids``."""
    wanted, span = _mass(row, floor, top, temperature) * np.float64(top_p), _SPAN * temperature
    while True:
        count, low = _best_first(row, floor, top, span, 1, ids)
        reached = 0.0
        for n in range(count):
            token = _pop(row, ids, count - n)
            reached += np.float64(exp((row[token] - top) * (_ONE / temperature)))
            if reached >= wanted:
                return count - n - 1, count
        if low <= floor:
            return 0, count
        span *= _WIDER


@jit()
def _race(
    row: Floats,
    ids: Ids,
    begin: int,
    end: int,
    temperature: np.float32,
    seed: int,
    choice: int,
    position: int,
) -> np.int64:
    """Draw by Gumbel-max among ``ids[begin:end]``; equals go to the lower id."""
    best, winner = _MINUS_INFINITY, np.int64(0)
    for n in range(begin, end):
        token = ids[n]
        scaled = row[token] / temperature
        if scaled + _MAX_GUMBEL < best:
            continue
        words = words_at(seed, choice, position, token // 4)
        value = scaled + gumbel(words[token % 4])
        if value > best or (value == best and token < winner):
            best, winner = value, np.int64(token)
    return winner


@jit()
def _race_all(
    row: Floats, floor: np.float32, top: np.float32, temperature: np.float32, seed: int, choice: int, position: int
) -> np.int64:
    """Draw by Gumbel-max among the logits >= ``floor``, in blocks of numbers drawn together.

    The noise is ``g = -log(-log(u))``. A token a ``gap`` behind the best sum can win only if ``-log(u) < exp(-gap)``.
    As ``1 - u < -log(u)``, the cheap bound ``1 - u < exp(-gap)`` must hold too. It rejects most tokens before any
    logarithm.
    """
    leader = _first_of(row, top)
    best = top / temperature + gumbel(words_at(seed, choice, position, leader // 4)[leader % 4])
    winner, factor = np.int64(leader), _ONE / temperature
    floor = max(floor, (best - _MAX_GUMBEL) * temperature)
    words, bounds = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.float32)
    for start in range(0, len(row), _BLOCK):
        size = min(_BLOCK, len(row) - start)
        hits = 0
        for j in range(size):
            hits += 1 if row[start + j] >= floor else 0
        if hits == 0:
            continue
        fill_words(words, seed, choice, position, start // 4)
        for j in range(size):
            bounds[j] = exp(row[start + j] * factor - best) * _SLACK
        passed = 0
        for j in range(size):
            passed += 1 if np.float32(_WORDS - words[j]) * _PER_WORD < bounds[j] else 0
        if passed == 0:
            continue
        for j in range(size):
            logit = row[start + j]
            if logit >= floor and np.float32(_WORDS - words[j]) * _PER_WORD < bounds[j]:
                value = logit / temperature + gumbel(words[j])
                token = np.int64(start + j)
                if value > best or (value == best and token < winner):
                    best, winner = value, token
    return winner


@jit()
def _draw(
    row: Floats,
    temperature: np.float32,
    top_k: int,
    top_p: np.float32,
    min_p: np.float32,
    seed: int,
    choice: int,
    position: int,
    ids: Ids,
) -> np.int64:
    top = largest(row)
    if temperature == _ZERO or not np.isfinite(top):
        return np.int64(_first_of(row, top))
    floor = _MINUS_INFINITY
    if min_p > _ZERO:
        floor = top + np.float32(math.log(min_p)) * temperature
    if 0 < top_k < len(row):
        floor = max(floor, _kth_largest(row, floor, top, _SPAN * temperature, top_k, ids))
    if top_p < _ONE:
        begin, end = _nucleus(row, floor, top, temperature, top_p, ids)
        return _race(row, ids, begin, end, temperature, seed, choice, position)
    return _race_all(row, floor, top, temperature, seed, choice, position)


@jit()
def _sample_row(logits: Floats, draws: Draws, out: NDArray[np.int64], n: int) -> None:
    d, ids = draws, np.empty(logits.shape[1], np.int32)
    row = logits[d.rows[n]]
    out[n] = _draw(
        row, d.temperature[n], d.top_k[n], d.top_p[n], d.min_p[n], d.seeds[n], d.choices[n], d.positions[n], ids
    )


@jit()
def sample(pool: int, logits: Floats, draws: Draws, out: NDArray[np.int64]) -> None:
    """Draw one token for each entry of ``draws``."""
    launch(pool, len(out), job(_sample_row, (logits, draws, out)))


@jit()
def _penalise_row(logits: Floats, penalties: Penalties, n: int) -> None:
    """Add the bias, then penalise each distinct token of the history once, with its count in the output."""
    p = penalties
    row, history = logits[p.rows[n]], p.token_ids[p.history_rows[n]]
    for b in range(p.bias_start[n], p.bias_start[n + 1]):
        row[p.bias_ids[b]] += p.bias_values[b]
    repetition, presence, frequency = p.repetition[n], p.presence[n], p.frequency[n]
    if repetition == _ONE and presence == _ZERO and frequency == _ZERO:
        return
    uses, seen = np.zeros(len(row), np.int32), np.zeros(len(row), np.bool_)
    for i in range(p.prompt_lens[n], p.num_tokens[n]):
        uses[history[i]] += 1
    for i in range(p.num_tokens[n]):
        token = history[i]
        if seen[token]:
            continue
        seen[token] = True
        value = row[token]
        value = value / repetition if value > _ZERO else value * repetition
        if uses[token] > 0:
            value -= frequency * np.float32(uses[token]) + presence
        row[token] = value


@jit()
def apply_penalties(pool: int, logits: Floats, penalties: Penalties) -> None:
    """Penalise the rows of ``penalties``, each at most once."""
    launch(pool, len(penalties.rows), job(_penalise_row, (logits, penalties)))


@jit()
def _logprobs_row(
    logits: Floats,
    token_ids: NDArray[np.int64],
    k: int,
    chosen: Floats,
    top_ids: NDArray[np.int64],
    top_values: Floats,
    r: int,
) -> None:
    row = logits[r]
    top = largest(row)
    norm = top + np.float32(math.log(_mass(row, _MINUS_INFINITY, top, _ONE))) if np.isfinite(top) else _ZERO
    chosen[r] = row[token_ids[r]] - norm
    if k == 0:
        return
    ids = np.empty(len(row), np.int32)
    size, _ = _best_first(row, _MINUS_INFINITY, top, _SPAN, k, ids)
    for n in range(min(k, size)):
        token = _pop(row, ids, size - n)
        top_ids[r, n] = token
        top_values[r, n] = row[token] - norm
    for n in range(size, k):
        top_ids[r, n] = 0
        top_values[r, n] = _MINUS_INFINITY


@jit()
def token_logprobs(
    pool: int,
    logits: Floats,
    token_ids: NDArray[np.int64],
    k: int,
    chosen: Floats,
    top_ids: NDArray[np.int64],
    top_values: Floats,
) -> None:
    """Compute the log probabilities of one token of each row and of the ``k`` best tokens."""
    launch(pool, len(logits), job(_logprobs_row, (logits, token_ids, k, chosen, top_ids, top_values)))
