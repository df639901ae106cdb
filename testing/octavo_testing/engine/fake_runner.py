"""A deterministic runner that checks every plan, and the output that a request must have."""

import random
from dataclasses import dataclass, field

from octavo_api.sampling import SamplingParams
from octavo_engine.core.plan import Logprobs, Sampled, StepOutput
from octavo_testing.engine.core_requests import EOS, VOCAB


def prefix_digest(digest, token):
    return hash((digest, token))


def digests_of(tokens):
    found, digest = [], 0
    for token in tokens:
        digest = prefix_digest(digest, token)
        found.append(digest)
    return found


def sample(digest, position, sampling, choice, num_output):
    """A token that depends on the whole prefix, the seed, the choice and the position; stop tokens are masked."""
    token = hash((digest, position, sampling.seed, choice)) % VOCAB
    if num_output < sampling.min_tokens:
        while token == EOS or token in sampling.stop_token_ids:
            token = (token + 1) % VOCAB
    return token


def expected_output(new, choice=0, *, seed=None, max_tokens=None, eos=EOS):
    """Return the output that a request has whatever runs beside it."""
    sampling = new.sampling if seed is None else new.sampling.with_(seed=seed)
    output, digest, position = [], digests_of(new.token_ids)[-1], len(new.token_ids)
    while True:
        token = sample(digest, position, sampling, choice, len(output))
        output.append(token)
        if len(output) >= sampling.min_tokens and (
            (token == eos and not sampling.ignore_eos) or token in sampling.stop_token_ids
        ):
            return output
        if len(output) == (max_tokens or sampling.max_tokens):
            return output
        digest, position = prefix_digest(digest, token), position + 1


@dataclass
class Row:
    tokens: list
    prompt_len: int
    blocks: list
    sampling: SamplingParams
    choice: int
    computed: int | None = None
    digests: list = field(default_factory=list)

    def append(self, token):
        self.tokens.append(token)
        self.digests.append(prefix_digest(self.digests[-1] if self.digests else 0, token))


POISON = "poison"
"""Content of a slot that was written by a fault."""


class FakeRunner:
    """Holds for each slot of each block the digest of the prefix whose last token's KV is there.

    Reading a slot that was never written, written for another prefix or overwritten since is an error. A row in
    ``poisoned_rows`` writes ``POISON``, as a processor's fault would. It spreads to every row that reads it, and only
    a row that samples shows it.
    """

    def __init__(self, block_size):
        self.block_size = block_size
        self.rows = {}
        self.slots = {}
        self.prefixes = {}
        self.num_copies = 0
        self.num_computed = 0
        self.lenient = False
        self.broken_rows = set()
        self.poisoned_rows = set()

    def execute(self, plan):
        for row in plan.leaves:
            assert self.lenient or row in self.rows, f"row {row} leaves and was never there"
            self.rows.pop(row, None)
            self.broken_rows.discard(row)
        for copy in plan.copies:
            self.num_copies += 1
            for offset in range(self.block_size):
                self.slots.pop((copy.target, offset), None)
                if (copy.source, offset) in self.slots:
                    self.slots[copy.target, offset] = self.slots[copy.source, offset]
        for join in plan.joins:
            assert self.lenient or join.row not in self.rows, f"row {join.row} is taken"
            self.broken_rows.discard(join.row)
            self.poisoned_rows.discard(join.row)
            assert join.sampling.seed is not None
            assert join.sampling.max_tokens is not None
            row = Row([], join.prompt_len, list(join.block_ids), join.sampling, join.choice)
            for token in join.token_ids:
                row.append(token)
            self.rows[join.row] = row
        assert len({work.row for work in plan.work}) == len(plan.work)
        sampled, prompt_logprobs, failed = [], {}, {}
        for work in plan.work:
            if work.row in self.broken_rows:  # planned before its last step failed: whatever comes out is stale
                sampled.extend(Sampled(work.row, choice, -1) for choice in work.choices)
                prompt_logprobs[work.row] = ()
            else:
                sampled.extend(self._compute(work, prompt_logprobs, failed))
        random.Random(plan.step_id).shuffle(sampled)
        return StepOutput(plan.step_id, tuple(sampled), prompt_logprobs, failed)

    def _compute(self, work, prompt_logprobs, failed):
        row = self.rows[work.row]
        row.blocks.extend(work.new_block_ids)
        assert len(set(row.blocks)) == len(row.blocks), "a block is twice in one table"
        start, end = work.start, work.start + work.count
        assert work.count > 0
        assert row.computed in (None, start), f"row {work.row} continues at {start}, was at {row.computed}"
        assert end <= len(row.tokens), "a token is computed before it is known"
        assert end <= len(row.blocks) * self.block_size, "no block for a position"
        poisoned = work.row in self.poisoned_rows
        for position in range(start):
            found = self.slots.get(self._slot(row, position))
            poisoned |= found is POISON
            assert found in (POISON, row.digests[position]), f"row {work.row} reads a wrong slot at position {position}"
        for position in range(start, end):
            self.slots[self._slot(row, position)] = POISON if poisoned else row.digests[position]
            self.prefixes[row.digests[position]] = tuple(row.tokens[: position + 1])
        row.computed = end
        self.num_computed += work.count
        if work.prompt_logprobs:
            assert row.sampling.prompt_logprobs is not None, "not requested"
            positions = range(start + 1, min(end, row.prompt_len - 1) + 1)
            prompt_logprobs[work.row] = tuple(Logprobs(row.tokens[p], -float(p)) for p in positions)
        if work.choices:
            assert end == len(row.tokens), "sampling before the last token is computed"
            if poisoned:
                failed[work.row] = "not finite"
                self.broken_rows.add(work.row)
                return []
        last, num_output = row.digests[end - 1], end - row.prompt_len
        sampled = []
        for choice in work.choices:
            token = sample(last, end, row.sampling, choice, num_output)
            logprobs = None if row.sampling.logprobs is None else Logprobs(token, -1.0)
            sampled.append(Sampled(work.row, choice, token, logprobs))
            if choice == row.choice:
                row.append(token)
        return sampled

    def _slot(self, row, position):
        return row.blocks[position // self.block_size], position % self.block_size

    def fresh_blocks(self, plan):
        """Blocks that this plan writes and whose rows did not have them before: they were handed out for it."""
        joins = {join.row: join for join in plan.joins}
        fresh = {copy.target for copy in plan.copies}
        for work in plan.work:
            fresh.update(work.new_block_ids)
            if work.row in joins:
                fresh.update(joins[work.row].block_ids[work.start // self.block_size + 1 :])
        return fresh

    def touched_blocks(self, plan, tables):
        touched = {block for copy in plan.copies for block in (copy.source, copy.target)}
        for work in plan.work:
            touched.update(tables[work.row])
        return touched
