"""Held prefixes: a tree of named blocks.

The held part of any chain is always a prefix ``0 .. d`` of it.
"""

from bisect import bisect_left
from collections.abc import Sequence

from octavo_api.blocks import BlockHash
from octavo_engine.core.kv.events import EventLog
from octavo_engine.core.state.block import Block, CacheNode


class PrefixCache:
    """Map of chain hashes to blocks. It reports its changes to ``log``."""

    def __init__(self, log: EventLog) -> None:
        self.nodes: dict[BlockHash, CacheNode] = {}
        self.generation = 0
        self.num_evicted = 0
        self._log = log

    def depth(self, hashes: Sequence[BlockHash], limit: int) -> int:
        """Return the number of held hashes among the first ``limit``.

        The held hashes are a prefix, so bisection finds its end.
        """
        nodes = self.nodes
        return bisect_left(range(limit), True, key=lambda i: hashes[i] not in nodes)

    def held_depth(self, hashes: Sequence[BlockHash], depth: int) -> int:
        """Return how many of the first ``depth`` hashes, all of them held here, running sequences use."""
        nodes = self.nodes
        return bisect_left(range(depth), True, key=lambda i: not nodes[hashes[i]].held)

    def blocks(self, hashes: Sequence[BlockHash], depth: int) -> list[Block]:
        """Return one block for each of the first ``depth`` hashes."""
        nodes = self.nodes
        return [nodes[hashes[i]].blocks[0] for i in range(depth)]

    def publish(self, block: Block, block_hash: BlockHash, parent: CacheNode | None) -> Block | None:
        """Name a written block that is in use; ``parent`` is the node before it.

        Returns a free block that had the name and lost it, if there was one.
        """
        node = self.nodes.get(block_hash)
        if node is None:
            node = CacheNode(block_hash, parent, block)
            self.nodes[block_hash] = node
            if parent is not None:
                parent.children += 1
            self._log.stored(None if parent is None else parent.hash, block_hash)
            block.node = node
            return None
        block.node = node
        first = node.blocks[0]
        node.blocks.append(block)
        return first if first.ref_count == 0 and node.drop_duplicate(first) else None

    def evict(self, node: CacheNode) -> None:
        """Drop an unused leaf. Raises ``AssertionError`` for any other node: routers rely on prefixes."""
        if node.children or len(node.blocks) != 1:
            raise AssertionError(f"block {node.blocks[0].id} would be evicted before the blocks that follow it")
        del self.nodes[node.hash]
        node.blocks[0].node = None
        if node.parent is not None:
            node.parent.children -= 1
        self.num_evicted += 1
        self._log.removed(node.hash)

    def forget(self, root: CacheNode) -> list[Block]:
        """Forget ``root`` and all names behind it, children before parents, and return their blocks.

        It looks at every held hash. Sequences that hold one of the blocks may not add names any more.
        """
        doomed = {root: None}
        for node in self.nodes.values():  # parents before children
            if node.parent in doomed:
                doomed[node] = None
        for node in reversed(doomed):
            del self.nodes[node.hash]
            if node.parent is not None:
                node.parent.children -= 1
            for block in node.blocks:
                block.node = None
            self._log.removed(node.hash)
        return [block for node in doomed for block in node.blocks]

    def clear(self) -> list[Block]:
        """Forget all names and return the blocks.

        Sequences that run now may not add names any more.
        """
        blocks = [block for node in self.nodes.values() for block in node.blocks]
        for block in blocks:
            block.node = None
        self.nodes.clear()
        self.generation += 1
        self._log.cleared()
        return blocks

    def snapshot(self) -> list[BlockHash]:
        """Return every held hash, parents before children."""
        return list(self.nodes)
