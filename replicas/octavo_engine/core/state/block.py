"""Blocks of the KV cache, and the names that they have in the prefix cache."""

from dataclasses import dataclass, field

from octavo_api.blocks import BlockHash


@dataclass(slots=True, eq=False)
class Block:
    """One block. ``ref_count`` holders have it in their tables; ``node`` is its name in the prefix cache, if any.

    ``previous`` and ``next`` are the links of the free list. Exactly the blocks without a holder are in that list.
    """

    id: int
    ref_count: int = 0
    node: "CacheNode | None" = None
    previous: "Block" = field(init=False, repr=False)
    next: "Block" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.previous = self.next = self


class CacheNode:
    """A held block hash, the blocks that hold it, and the number of held hashes that follow it directly.

    Two sequences that compute the same prefix at the same time have a block each, because tables only grow at their
    end. All of these blocks carry the name while they are in use. So the holder of a block always holds all hashes
    before it. When two blocks are left and one has no holder, that block loses the name.
    """

    __slots__ = ("blocks", "children", "hash", "parent")

    def __init__(self, block_hash: BlockHash, parent: "CacheNode | None", block: Block) -> None:
        self.hash = block_hash
        self.parent = parent
        self.children = 0
        self.blocks = [block]

    @property
    def held(self) -> bool:
        """True if a sequence uses the node. A node whose child is held is held."""
        return self.blocks[0].ref_count > 0

    def drop_duplicate(self, block: Block) -> bool:
        """Take the name from ``block`` if another block has it too; return True if it did."""
        if len(self.blocks) == 1:
            return False
        self.blocks.remove(block)
        block.node = None
        return True
