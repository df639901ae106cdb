"""A driver of the core with the fake runner. It checks the core after each turn."""

from collections import deque

from octavo_api.blocks import Digest, chain_hashes
from octavo_api.errors import EngineFailure
from octavo_api.finish_reason import FinishReason
from octavo_engine.core.kv.events import Cleared, Removed, Stored
from octavo_testing.engine.fake_runner import POISON, FakeRunner, expected_output
from octavo_testing.engine.preemption import preempt, running_sequences


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

    def abort(self, request_id, choice=None):
        self.core.abort(request_id, self.now, choice)

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
        """Preempt a running sequence and return it, if there is one."""
        running = running_sequences(self.core)
        if not running:
            return None
        victim = running[index % len(running)]
        preempt(self.core, victim)
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
        roots = [config.hash_space.root(salt) for salt in salts]
        for block_hash, node in core._kv.cache.nodes.items():
            content = self.runner.slots[node.blocks[0].id, config.block_size - 1]
            if content is POISON:
                continue  # its sequence was aborted before a sample showed the fault
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
