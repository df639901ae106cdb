"""Penalties, arg-max, Gumbel-max sampling and log probabilities over rows of fp32 logits.

No row is sorted whole. The noise of a token lies in a known interval, so a token whose logit is further below the best
sum so far than the noise can reach never wins: most of a vocabulary is passed over without a random number.
"""

import math

import numpy as np
from numba import prange

from octavo_kernels.cpu.exponential import exp
from octavo_kernels.cpu.jit import jit
from octavo_kernels.cpu.random import gumbel, words_at

_MINUS_INFINITY = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_MAX_GUMBEL = np.float32(17.4)  # -log(-log(1 - 2**-25)) is 17.33
_LANES = 64  # independent maxima, so that the search for the largest is vectorised
_NUCLEUS_SPAN = np.float32(12.0)  # first guess at how far below the best logit top_p reaches


@jit()
def largest(row):
    """Largest of a row, NaN apart."""
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
def _first_of(row, value):
    for j in range(len(row)):
        if row[j] == value:
            return j
    return 0


@jit(parallel=True)
def argmax(logits, out, threads):
    """First index of the largest logit of each row."""
    rows = len(logits)
    for t in prange(threads):
        for r in range(t * rows // threads, (t + 1) * rows // threads):
            out[r] = _first_of(logits[r], largest(logits[r]))


@jit()
def _above(row, floor, ids):
    """Indices of the logits >= ``floor``, into ``ids``; returns their number."""
    count = 0
    for j in range(len(row)):
        if row[j] >= floor:
            ids[count] = j
            count += 1
    return count


@jit()
def _rank(row, ids):
    """``ids`` by logit, best first; equals by lower id."""
    return ids[np.argsort(-row[ids], kind="mergesort")]


@jit()
def _kth_largest(row, floor, k, ids):
    """The k-th largest logit of those >= ``floor`` (or the floor, where there are fewer)."""
    count = _above(row, floor, ids)
    if count <= k:
        return floor
    kept = row[ids[:count]]
    return np.partition(kept, count - k)[count - k]


@jit()
def _nucleus(row, floor, top, temperature, top_p, ids):
    """Number of tokens that top_p keeps of those with a logit >= ``floor``: they lead ``ids``, best first."""
    mass = 0.0
    for j in range(len(row)):
        if row[j] >= floor:
            mass += np.float64(exp((row[j] - top) / temperature))
    wanted, span = mass * np.float64(top_p), _NUCLEUS_SPAN * temperature
    while True:
        low = max(floor, top - span)
        count = _above(row, low, ids)
        ranked = _rank(row, ids[:count])
        reached = 0.0
        for n in range(count):
            ids[n] = ranked[n]
            reached += np.float64(exp((row[ranked[n]] - top) / temperature))
            if reached >= wanted:
                return n + 1
        if low <= floor or not np.isfinite(low):
            return count
        span *= np.float32(4.0)


@jit()
def _race(row, ids, count, temperature, seed, choice, position):
    """Gumbel-max among ``ids``; equals go to the lower id."""
    best, winner = _MINUS_INFINITY, np.int64(0)
    for n in range(count):
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
def _draw(row, temperature, top_k, top_p, min_p, seed, choice, position, ids):
    top = largest(row)
    if temperature == _ZERO or not np.isfinite(top):
        return np.int64(_first_of(row, top))
    floor = _MINUS_INFINITY
    if min_p > _ZERO:
        floor = top + np.float32(math.log(min_p)) * temperature
    if 0 < top_k < len(row):
        floor = max(floor, _kth_largest(row, floor, top_k, ids))
    if top_p < _ONE:
        return _race(row, ids, _nucleus(row, floor, top, temperature, top_p, ids), temperature, seed, choice, position)
    # The best logit's own noise bounds what can win before any other number is drawn.
    best_id = _first_of(row, top)
    reach = gumbel(words_at(seed, choice, position, best_id // 4)[best_id % 4]) - _MAX_GUMBEL
    count = _above(row, max(floor, top + reach * temperature), ids)
    return _race(row, ids, count, temperature, seed, choice, position)


@jit(parallel=True)
def sample(logits, rows, temperature, top_k, top_p, min_p, seeds, choices, positions, out, threads):
    count = len(rows)
    for t in prange(threads):
        ids = np.empty(logits.shape[1], np.int32)
        for n in range(t * count // threads, (t + 1) * count // threads):
            out[n] = _draw(
                logits[rows[n]], temperature[n], top_k[n], top_p[n], min_p[n], seeds[n], choices[n], positions[n], ids
            )


@jit(parallel=True)
def apply_penalties(
    logits, rows, repetition, presence, frequency, token_ids, history_rows, prompt_lens, num_tokens,
    bias_start, bias_ids, bias_values, threads,
):  # fmt: skip
    """Bias first, then each distinct token of the history once, with its count in the output."""
    count = len(rows)
    for t in prange(threads):
        uses = np.zeros(logits.shape[1], np.int32)
        seen = np.zeros(logits.shape[1], np.bool_)
        for n in range(t * count // threads, (t + 1) * count // threads):
            row, history = logits[rows[n]], token_ids[history_rows[n]]
            for b in range(bias_start[n], bias_start[n + 1]):
                row[bias_ids[b]] += bias_values[b]
            if repetition[n] == _ONE and presence[n] == _ZERO and frequency[n] == _ZERO:
                continue
            for i in range(prompt_lens[n], num_tokens[n]):
                uses[history[i]] += 1
            for i in range(num_tokens[n]):
                token = history[i]
                if seen[token]:
                    continue
                seen[token] = True
                value = row[token]
                value = value / repetition[n] if value > _ZERO else value * repetition[n]
                if uses[token] > 0:
                    value -= frequency[n] * np.float32(uses[token]) + presence[n]
                row[token] = value
            for i in range(num_tokens[n]):
                seen[history[i]], uses[history[i]] = False, 0


@jit(parallel=True)
def token_logprobs(logits, token_ids, k, chosen, top_ids, top_values, threads):
    """Log probabilities of one token of each row and of the ``k`` best."""
    rows = len(logits)
    for t in prange(threads):
        ids = np.empty(logits.shape[1], np.int32)
        for r in range(t * rows // threads, (t + 1) * rows // threads):
            row = logits[r]
            top = largest(row)
            total = 0.0
            for j in range(len(row)):
                total += np.float64(exp(row[j] - top))
            norm = top + np.float32(math.log(total))
            chosen[r] = row[token_ids[r]] - norm
            if k > 0:
                floor = _kth_largest(row, _MINUS_INFINITY, k, ids)
                ranked = _rank(row, ids[: _above(row, floor, ids)])
                for n in range(k):
                    top_ids[r, n] = ranked[n]
                    top_values[r, n] = row[ranked[n]] - norm
