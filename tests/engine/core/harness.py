"""A deterministic runner that checks every plan, and a driver that checks the core between steps."""

import random
from collections import deque
from dataclasses import dataclass, field

from octavo_api.blocks import chain_hashes, root_hash
from octavo_api.errors import EngineFailure
from octavo_api.finish_reason import FinishReason
from octavo_api.sampling import SamplingParams
from octavo_api.settings import SchedulingPolicy
from octavo_engine.core.config import CoreConfig
from octavo_engine.core.engine_core import EngineCore
from octavo_engine.core.kv.events import Cleared, Digest, Removed, Stored
from octavo_engine.core.plan import Logprobs, Sampled, StepOutput
from octavo_engine.core.request import NewRequest

VOCAB = 997
EOS = 0
BLOCK = 4


def create_config(**changes):
    values = {
        "num_blocks": 64,
        "block_size": BLOCK,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 64,
        "long_prefill_token_threshold": 0,
        "max_model_len": 4096,
        "max_num_queued_reqs": 1000,
        "enable_prefix_caching": True,
        "scheduling_policy": SchedulingPolicy.FCFS,
        "eos_token_ids": frozenset({EOS}),
        "model_key": "test",
        "kv_dtype": "float32",
        "seed": 1,
        "steps_in_flight": 1,
    }
    values.update(changes)
    return CoreConfig(**values)


def create_core(**changes):
    return EngineCore(create_config(**changes))


def prompt(length, seed=0):
    rng = random.Random(seed)
    return tuple(rng.randrange(1, VOCAB) for _ in range(length))


def new_request(request_id, tokens, *, priority=0, cache_salt="", deadline=None, hashes=None, **sampling):
    sampling.setdefault("max_tokens", 8)
    sampling.setdefault("seed", 7)
    sampling.setdefault("ignore_eos", True)
    return NewRequest(request_id, tokens, hashes, SamplingParams(**sampling), priority, cache_salt, deadline)


def create_requests(count, length=10, *, first_id=0, same_prompt=False, **options):
    """Requests ``0 .. count - 1``, each with a prompt of its own unless ``same_prompt``."""
    return [
        new_request(first_id + i, prompt(length, 0 if same_prompt else first_id + i + 1), **options)
        for i in range(count)
    ]


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
    """What a request yields when nothing but the request matters."""
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


class FakeRunner:
    """Holds for each slot of each block the digest of the prefix whose last token's KV is there.

    Reading a slot that was never written, written for another prefix or overwritten since is an error.
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
            assert join.sampling.seed is not None
            assert join.sampling.max_tokens is not None
            row = Row([], join.prompt_len, list(join.block_ids), join.sampling, join.choice)
            for token in join.token_ids:
                row.append(token)
            self.rows[join.row] = row
        assert len({work.row for work in plan.work}) == len(plan.work)
        sampled, prompt_logprobs = [], {}
        for work in plan.work:
            if work.row in self.broken_rows:  # planned before its last step failed: whatever comes out is stale
                sampled.extend(Sampled(work.row, choice, -1) for choice in work.choices)
                prompt_logprobs[work.row] = ()
            else:
                sampled.extend(self._compute(work, prompt_logprobs))
        random.Random(plan.step_id).shuffle(sampled)
        return StepOutput(plan.step_id, tuple(sampled), prompt_logprobs)

    def _compute(self, work, prompt_logprobs):
        row = self.rows[work.row]
        row.blocks.extend(work.new_block_ids)
        assert len(set(row.blocks)) == len(row.blocks), "a block is twice in one table"
        start, end = work.start, work.start + work.count
        assert work.count > 0
        assert row.computed in (None, start), f"row {work.row} goes on at {start}, was at {row.computed}"
        assert end <= len(row.tokens), "a token is computed before it is known"
        assert end <= len(row.blocks) * self.block_size, "no block for a position"
        for position in range(start):
            assert self.slots.get(self._slot(row, position)) == row.digests[position], (
                f"row {work.row} reads a wrong slot at position {position}"
            )
        for position in range(start, end):
            self.slots[self._slot(row, position)] = row.digests[position]
            self.prefixes[row.digests[position]] = tuple(row.tokens[: position + 1])
        row.computed = end
        self.num_computed += work.count
        if work.prompt_logprobs:
            assert row.sampling.prompt_logprobs is not None, "nobody asked for these"
            positions = range(start + 1, min(end, row.prompt_len - 1) + 1)
            prompt_logprobs[work.row] = tuple(Logprobs(row.tokens[p], -float(p)) for p in positions)
        if work.choices:
            assert end == len(row.tokens), "sampling before the last token is computed"
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


class Mirror:
    """A router's view of the cache, made from events alone."""

    def __init__(self):
        self.parents = {}

    def apply(self, events):
        for event in events:
            if isinstance(event, Stored):
                assert event.hashes
                parent = event.parent
                for block_hash in event.hashes:
                    assert parent is None or parent in self.parents, "a child is stored before its parent"
                    assert block_hash not in self.parents, "stored twice"
                    self.parents[block_hash] = parent
                    parent = block_hash
            elif isinstance(event, Removed):
                for block_hash in event.hashes:
                    assert block_hash not in self.parents.values(), "a parent is removed before its child"
                    del self.parents[block_hash]
            else:
                assert isinstance(event, Cleared)
                self.parents.clear()


class Session:
    """Drives a core with a runner, and checks after every turn what must always hold."""

    def __init__(self, core, *, check=True):
        self.core = core
        self.depth = core.config.steps_in_flight
        self.runner = FakeRunner(core.config.block_size)
        self.check = check
        self.now = 0.0
        self.plans = deque()
        self.tables = {}
        self.outputs = {}
        self.by_choice = {}
        self.finished = {}
        self.mirror = Mirror()
        self.num_plans = 0

    def add(self, *requests):
        for new in requests:
            self.core.add_request(new, self.now)
        return self

    def schedule(self):
        """Makes one plan and puts it in flight; returns it."""
        plan = self.core.schedule(self.now)
        if plan is not None:
            assert plan.work
            assert plan.num_tokens <= self.core.config.max_num_batched_tokens
            assert len(plan.work) <= self.core.config.max_num_seqs
            in_flight = set()
            for earlier, touched in self.plans:
                assert earlier.step_id < plan.step_id
                in_flight |= touched
            reused = self.runner.fresh_blocks(plan) & in_flight
            assert not reused, f"blocks {reused} are handed out while a plan in flight touches them"
            for join in plan.joins:
                self.tables[join.row] = list(join.block_ids)
            for work in plan.work:
                self.tables[work.row].extend(work.new_block_ids)
            self.plans.append((plan, self.runner.touched_blocks(plan, self.tables)))
            self.num_plans += 1
        return plan

    def commit(self):
        """Executes and commits the oldest plan in flight."""
        plan, _ = self.plans.popleft()
        self.core.commit(self.runner.execute(plan), self.now)

    def fail(self, message="boom"):
        """The runner raises in the oldest plan, before doing anything."""
        plan, _ = self.plans.popleft()
        self.runner.lenient = True
        self.runner.broken_rows.update(work.row for work in plan.work)
        self.core.fail_step(plan.step_id, EngineFailure(message), self.now)
        self.collect()

    def turn(self):
        """Plans as far ahead as allowed, commits one plan; returns the newest plan made."""
        self.now += 1.0
        newest = None
        while len(self.plans) < self.depth and (plan := self.schedule()) is not None:
            newest = plan
        if self.plans:
            self.commit()
        else:
            assert not self.core.has_unfinished, "nothing to do and requests are left"
        self.collect()
        return newest

    def collect(self):
        for output in self.core.take_outputs():
            key = (output.request_id, output.choice)
            assert key not in self.finished, f"{key} had ended"
            first = not any(k[0] == output.request_id for k in self.by_choice)
            assert (output.cached_tokens is not None) == first, "cached_tokens comes with the first output, only"
            self.by_choice.setdefault(key, []).append(output)
            self.outputs.setdefault(key, []).extend(output.token_ids)
            if output.finish_reason is not None:
                self.finished[key] = output
        if self.check:
            self.core.check_integrity()
            self.mirror.apply(self.core.take_events())
            held = self.core.snapshot()
            assert held == list(self.mirror.parents)
            assert self.core.digest == Digest.of(held)
            assert self.core.num_cached_blocks == len(held)

    def run(self, max_turns=5000):
        for _ in range(max_turns):
            if not self.core.has_unfinished and not self.plans:
                return self
            self.turn()
        raise AssertionError(f"not done after {max_turns} turns")

    def reasons(self):
        return {key: output.finish_reason for key, output in self.finished.items()}

    def timings(self, request_id):
        return [o.timing for k, o in self.finished.items() if k[0] == request_id and o.timing is not None]

    def force_preemption(self, index=-1):
        """Preempts a running sequence as the scheduler would at the start of its next plan."""
        scheduler = self.core._scheduler
        running = [seq for seq in scheduler.running if seq.row is not None]
        if not running:
            return None
        victim = running[index % len(running)]
        scheduler.running.remove(victim)
        scheduler._preempt(victim)
        self.core.check_integrity()
        return victim

    def assert_idle(self, salts=("",)):
        """Everything is back: no row, no reference, and what is cached is what its hash says."""
        core = self.core
        core.check_integrity()
        load = core.load()
        assert not core.has_unfinished
        assert (load.num_requests_running, load.num_requests_waiting) == (0, 0)
        assert (load.kv_blocks_pinned, load.waiting_uncached_tokens, load.running_prefill_tokens) == (0, 0, 0)
        assert load.kv_blocks_cached == core.num_cached_blocks
        assert load.prefix_cache_hits_total <= load.prefix_cache_queries_total <= load.prompt_tokens_total
        config = core.config
        roots = [
            root_hash(
                model_key=config.model_key,
                kv_dtype=config.kv_dtype,
                block_size=config.block_size,
                cache_salt=salt,
            )
            for salt in salts
        ]
        for block_hash, node in core._kv.cache.nodes.items():
            content = self.runner.slots[node.blocks[0].id, config.block_size - 1]
            tokens = self.runner.prefixes[content]
            assert block_hash in [chain_hashes(root, tokens, config.block_size)[-1] for root in roots]
        return self


def run_to_completion(core, requests, *, max_turns=5000):
    """Serves ``requests`` with a fake runner; returns the session, checked to be idle."""
    return Session(core).add(*requests).run(max_turns).assert_idle()


def assert_expected(session, requests):
    """Every choice of every request yielded exactly what it yields alone, and ended by stop or length."""
    for new in requests:
        for choice in range(new.sampling.n):
            key = (new.request_id, choice)
            assert session.outputs[key] == expected_output(new, choice), key
            assert session.finished[key].finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        assert len(session.timings(new.request_id)) == 1
