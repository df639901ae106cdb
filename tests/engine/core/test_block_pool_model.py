"""Block pool and prefix cache against a model that is too simple to be wrong."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo_api.blocks import Digest
from octavo_engine.core.kv.block_pool import BlockPool, FreeList
from octavo_engine.core.kv.events import EventLog
from octavo_engine.core.kv.prefix_cache import PrefixCache
from octavo_engine.core.state.block import Block

NUM_BLOCKS = 10
CONTENT = st.lists(st.integers(0, 1), min_size=1, max_size=5)


def name(chain):
    """A stand-in for the chain hash of a non-empty tuple of block contents."""
    return bytes(chain).rjust(16, b"\xff")


@dataclass(eq=False)
class Table:
    chains: list
    generation: int
    blocks: list = field(default_factory=list)
    published: int = 0


class PoolAgainstModel(RuleBasedStateMachine):
    """The model knows the tables, and the names that no table carries in the order in which they were let go."""

    def __init__(self):
        super().__init__()
        self.log = EventLog()
        self.cache = PrefixCache(self.log)
        self.pool = BlockPool(NUM_BLOCKS, self.cache.evict)
        self.tables = []
        self.unheld = []

    def model_held(self):
        return {chain for table in self.tables for chain in table.chains[: table.published]}

    def model_num_used(self):
        return len({id(block) for table in self.tables for block in table.blocks})

    def model_allocate(self):
        """If no block is nameless, the first name that was let go and that no cached name follows is lost."""
        if self.model_num_used() + len(self.unheld) < NUM_BLOCKS:
            return
        cached = self.model_held().union(self.unheld)
        leaf = next(chain for chain in self.unheld if not any(chain == other[:-1] for other in cached))
        self.unheld.remove(leaf)

    @rule(content=CONTENT, reads=st.booleans())
    def start(self, content, reads):
        """A sequence takes what is cached of its chain, unless it does not read, and blocks for the rest."""
        chains = [tuple(content[: i + 1]) for i in range(len(content))]
        hashes = [name(chain) for chain in chains]
        held, cached = self.model_held(), self.model_held().union(self.unheld)
        depth = self.cache.depth(hashes, len(hashes) if reads else 0)
        assert depth == (sum(chain in cached for chain in chains) if reads else 0)
        in_use = self.cache.held_depth(hashes, depth)
        assert in_use == sum(chain in held for chain in chains[:depth])
        if len(content) - in_use > self.pool.num_free:
            return
        table = Table(chains, self.cache.generation, self.cache.blocks(hashes, depth), depth)
        self.pool.acquire(table.blocks)
        self.unheld = [chain for chain in self.unheld if chain not in chains[:depth]]
        self.tables.append(table)
        for _ in range(len(content) - depth):
            self.model_allocate()
            table.blocks.append(self.pool.allocate())
        assert len(set(table.blocks)) == len(table.blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data):
        """A sequence has written its next block."""
        table = data.draw(st.sampled_from(self.tables))
        if table.published == len(table.blocks) or table.generation != self.cache.generation:
            return
        index, chain = table.published, table.chains[table.published]
        parent = table.blocks[index - 1].node if index else None
        unnamed = self.cache.publish(table.blocks[index], name(chain), parent)
        assert (unnamed is not None) == (chain in self.unheld)
        if unnamed is not None:
            self.pool.move_to_front(unnamed)
            self.unheld.remove(chain)
        table.published += 1

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def let_go(self, data):
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(reversed(table.blocks))
        held = self.model_held()
        self.unheld += [chain for chain in reversed(table.chains[: table.published]) if chain not in held]

    @rule()
    def clear(self):
        for block in self.cache.clear():
            if block.ref_count == 0:
                self.pool.move_to_front(block)
        for table in self.tables:
            table.published = 0
        self.unheld.clear()

    @invariant()
    def agrees(self):
        cached = self.model_held().union(self.unheld)
        assert set(self.cache.snapshot()) == {name(chain) for chain in cached}
        assert all(len(chain) == 1 or chain[:-1] in cached for chain in cached), "what is held is a prefix"
        assert self.log.digest == Digest.of(self.cache.nodes)
        assert self.pool.num_cached_free == len(self.unheld)
        assert self.pool.num_free == NUM_BLOCKS - self.model_num_used()
        used = {block for table in self.tables for block in table.blocks}
        assert set(self.pool.free) == set(self.pool.blocks) - used


PoolAgainstModel.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestPoolAgainstModel = PoolAgainstModel.TestCase


class FreeListAgainstList(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.blocks = [Block(i) for i in range(6)]
        self.free = FreeList()
        self.model = []

    @rule(index=st.integers(0, 5), front=st.booleans())
    def push(self, index, front):
        block = self.blocks[index]
        if block not in self.model:
            (self.free.push_front if front else self.free.push_back)(block)
            self.model.insert(0 if front else len(self.model), block)

    @rule(index=st.integers(0, 5))
    def remove(self, index):
        block = self.blocks[index]
        if block in self.model:
            self.free.remove(block)
            self.model.remove(block)

    @rule()
    def pop(self):
        if self.model:
            assert self.free.pop_front() is self.model.pop(0)

    @invariant()
    def agrees(self):
        assert list(self.free) == self.model
        assert len(self.free) == len(self.model)


FreeListAgainstList.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestFreeListAgainstList = FreeListAgainstList.TestCase
