"""Holders of each block of the KV cache, and the order in which free blocks are allocated."""

from collections.abc import Callable, Iterable, Iterator

from octavo_engine.core.state.block import Block, CacheNode


class FreeList:
    """A doubly linked list through the blocks themselves: O(1) at both ends and in the middle.

    ::

        head <-> never published <-> least recently used ... most recently used <-> tail
                 (used first)        children before their parents
    """

    def __init__(self) -> None:
        self._head = Block(-1)
        self._tail = Block(-2)
        self._head.next = self._tail
        self._tail.previous = self._head
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self._head.next
        while block is not self._tail:
            yield block
            block = block.next

    def push_front(self, block: Block) -> None:
        self._insert(block, self._head, self._head.next)

    def push_back(self, block: Block) -> None:
        self._insert(block, self._tail.previous, self._tail)

    def pop_front(self) -> Block:
        block = self._head.next
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        block.previous.next = block.next
        block.next.previous = block.previous
        block.previous = block.next = block
        self._length -= 1

    def _insert(self, block: Block, before: Block, after: Block) -> None:
        block.previous, block.next = before, after
        before.next = after.previous = block
        self._length += 1


class BlockPool:
    """Fixed blocks, counted references, least recently used first.

    A free block that is still published serves hits until the pool allocates it. The pool then calls ``evict``. Holders
    release their last block first, and the holder of a block also holds all blocks before it. So in the free list
    children always precede their parents: allocation from the front takes leaves of the prefix tree.
    """

    def __init__(self, num_blocks: int, evict: Callable[[CacheNode], None]) -> None:
        self.blocks = tuple(Block(i) for i in range(num_blocks))
        self.free = FreeList()
        for block in self.blocks:
            self.free.push_back(block)
        self.num_cached_free = 0
        self._evict = evict

    @property
    def num_free(self) -> int:
        """Number of blocks without a holder, published or not. All of them can be allocated."""
        return len(self.free)

    def allocate(self) -> Block:
        """Allocate one block; there must be a free one."""
        block = self.free.pop_front()
        if block.node is not None:
            self.num_cached_free -= 1
            self._evict(block.node)
        block.ref_count = 1
        return block

    def acquire(self, blocks: Iterable[Block]) -> None:
        """Add a holder to each block, and take blocks that had none out of the free list."""
        for block in blocks:
            if block.ref_count == 0:
                self.free.remove(block)
                self.num_cached_free -= 1
            block.ref_count += 1

    def release(self, blocks: Iterable[Block]) -> None:
        """Remove one holder from each block.

        ``blocks`` are in the order in which they may be evicted, the last block of a chain first.
        """
        for block in blocks:
            block.ref_count -= 1
            if block.ref_count:
                continue
            if block.node is None or block.node.drop_duplicate(block):
                self.free.push_front(block)
            else:
                self.free.push_back(block)
                self.num_cached_free += 1

    def move_to_front(self, block: Block) -> None:
        """Move a free block that has lost its name to the front, so that it is allocated first."""
        self.free.remove(block)
        self.free.push_front(block)
        self.num_cached_free -= 1
