"""The blocks of a sequence: found, allocated, shared, named and released."""

from collections.abc import Iterable

from octavo_api.blocks import next_hash
from octavo_engine.core.kv.block_pool import BlockPool
from octavo_engine.core.kv.events import EventLog
from octavo_engine.core.kv.prefix_cache import PrefixCache
from octavo_engine.core.plan import BlockCopy
from octavo_engine.core.state.block import Block
from octavo_engine.core.state.sequence import Sequence
from octavo_engine.core.state.steps import ScheduledStep, StepsInFlight


class KVCacheManager:
    """Block tables over one pool and one prefix cache.

    An admitted sequence gets all blocks of its known tokens, so that they can be computed. From then on it gets one
    block at a time. Blocks that a plan in flight touches stay held until that plan is committed.
    """

    def __init__(
        self, *, num_blocks: int, block_size: int, enable_prefix_caching: bool, log: EventLog, steps: StepsInFlight
    ) -> None:
        self.block_size = block_size
        self.cache = PrefixCache(log)
        self.pool = BlockPool(num_blocks, self.cache.evict)
        self.num_pending_free = 0
        """Maximum number of blocks that become free when the plans in flight are committed."""
        self._enabled = enable_prefix_caching
        self._steps = steps

    def find_hit(self, seq: Sequence) -> int:
        """Return the number of leading blocks that the cache holds, at most the blocks before the last token.

        Log probabilities of the prompt need its logits. So a sequence that still owes them reads nothing from the
        cache.
        """
        if not self._enabled or seq.request.wants_prompt_logprobs:
            return 0
        limit = (len(seq.tokens) - 1) // self.block_size
        self._extend_hashes(seq, limit)
        return self.cache.depth(seq.hashes, limit)

    def uncached_tokens(self, seq: Sequence) -> int:
        """Return the number of known tokens that the cache does not hold now."""
        return len(seq.tokens) - self.find_hit(seq) * self.block_size

    def fits(self, seq: Sequence, hit: int) -> bool:
        """Return True if all known tokens of a waiting sequence have room now.

        Hits that are already in use cost nothing.
        """
        if self._num_blocks(seq) <= self.pool.num_free:
            return True
        return self._num_blocks(seq) - self.cache.held_depth(seq.hashes, hit) <= self.pool.num_free

    def admit(self, seq: Sequence, hit: int) -> None:
        """Give a sequence that fits its blocks, the first ``hit`` of them from the cache."""
        blocks = self.cache.blocks(seq.hashes, hit)
        self.pool.acquire(blocks)
        allocate = self.pool.allocate
        blocks.extend(allocate() for _ in range(self._num_blocks(seq) - hit))
        seq.blocks = blocks
        seq.num_computed_tokens = hit * self.block_size
        seq.num_published = hit
        seq.cache_generation = self.cache.generation
        seq.writable_until = len(blocks) * self.block_size

    def extend(self, seq: Sequence, step: ScheduledStep) -> tuple[int, ...] | None:
        """Make the next position of ``seq`` writable; return the ids of appended blocks, None if no block is free.

        The position lies behind the table, or in the partial last block of a prompt that a fork shares. The sequence
        that joined before the fork continues to write to that block. Each fork writes to a copy. The last holder of the
        block writes in place, unless the block was named after the tokens of another sequence.
        """
        index = seq.num_computed_tokens // self.block_size
        shared = seq.blocks[index] if index < len(seq.blocks) else None
        if shared is None or shared.ref_count > 1 or shared.node is not None:
            if not self.pool.num_free:
                return None
            block = self.pool.allocate()
            if shared is None:
                seq.blocks.append(block)
            else:
                seq.blocks[index] = block
                step.copies.append(BlockCopy(shared.id, block.id))
                step.released.append(shared)
                self.num_pending_free += 1
        seq.writable_until = len(seq.blocks) * self.block_size
        return (seq.blocks[-1].id,) if shared is None else ()

    def fork(self, leader: Sequence, fork: Sequence) -> None:
        """Share the blocks of the prompt with ``fork``, whose next position is not writable yet."""
        blocks = leader.blocks[: -(-leader.prompt_len // self.block_size)]
        self.pool.acquire(blocks)
        fork.blocks = blocks
        fork.num_computed_tokens = fork.writable_until = leader.prompt_len
        fork.num_published = leader.prompt_len // self.block_size
        fork.cache_generation = leader.cache_generation

    def publish(self, seq: Sequence, num_written: int) -> None:
        """Name the full blocks among the first ``num_written`` positions, which are written.

        A sequence whose named blocks were forgotten names no more: the held part of a chain is a prefix.
        """
        if not self._enabled or seq.cache_generation != self.cache.generation:
            return
        if seq.num_published and seq.blocks[seq.num_published - 1].node is None:
            return
        full = num_written // self.block_size
        self._extend_hashes(seq, full)
        for index in range(seq.num_published, full):
            parent = seq.blocks[index - 1].node if index else None
            unnamed = self.cache.publish(seq.blocks[index], seq.hashes[index], parent)
            if unnamed is not None:
                self.pool.move_to_front(unnamed)
        seq.num_published = max(full, seq.num_published)

    def unpublish(self, seq: Sequence) -> None:
        """Forget the named blocks of a sequence that failed, and all names behind them.

        The KV that it read may be as bad as the KV that it wrote, whichever sequence computed it.
        """
        node = seq.blocks[0].node if seq.num_published else None
        if node is not None:
            self._move_unused_to_front(self.cache.forget(node))

    def release(self, seq: Sequence) -> None:
        """Take all blocks from ``seq``, now or when the last plan that touches them is committed."""
        blocks, seq.blocks = seq.blocks, []
        step = self._steps.find(seq.last_step)
        if step is None:
            self.pool.release(reversed(blocks))
        else:
            step.released.extend(reversed(blocks))
            self.num_pending_free += len(blocks)
        seq.num_computed_tokens = seq.num_published = seq.writable_until = 0
        seq.num_tokens = len(seq.tokens)
        seq.epoch += 1

    def release_step(self, step: ScheduledStep) -> None:
        """Release the blocks that a finished step still held."""
        self.num_pending_free -= len(step.released)
        self.pool.release(step.released)

    def reset_prefix_cache(self) -> None:
        """Forget every prefix. Running sequences keep their blocks, which are not named again."""
        self._move_unused_to_front(self.cache.clear())

    def _move_unused_to_front(self, unnamed: Iterable[Block]) -> None:
        for block in unnamed:
            if block.ref_count == 0:
                self.pool.move_to_front(block)

    def _num_blocks(self, seq: Sequence) -> int:
        return -(-len(seq.tokens) // self.block_size)

    def _extend_hashes(self, seq: Sequence, count: int) -> None:
        hashes, size = seq.hashes, self.block_size
        for index in range(len(hashes), count):
            parent = hashes[-1] if hashes else seq.request.root
            hashes.append(next_hash(parent, seq.tokens[index * size : (index + 1) * size]))
