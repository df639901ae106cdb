"""Comparison of the core's incremental state with a computation from scratch."""

from collections import Counter
from collections.abc import Iterable

from octavo_api.blocks import Digest
from octavo_engine.core.kv.manager import KVCacheManager
from octavo_engine.core.scheduling.scheduler import Scheduler
from octavo_engine.core.state.sequence import Request, Sequence
from octavo_engine.core.state.steps import StepsInFlight


def check(
    scheduler: Scheduler, kv: KVCacheManager, steps: StepsInFlight, digest: Digest, requests: Iterable[Request]
) -> None:
    """Raise ``AssertionError`` at the first difference between the state and its recomputation."""
    _check_sequences(scheduler, kv, requests)
    _check_references(scheduler, kv, steps)
    _check_free_list(kv)
    _check_cache(kv, digest)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _check_sequences(scheduler: Scheduler, kv: KVCacheManager, requests: Iterable[Request]) -> None:
    running = [seq for seq in scheduler.running if seq.row is not None]
    rows = [seq.row for seq in running]
    _require([seq.key for seq in running] == sorted(seq.key for seq in running), "running sequences are out of order")
    _require(len(rows) == len(set(rows)) == scheduler.rows.num_used, "a row is used twice, or is lost")
    _require(scheduler.rows.free.isdisjoint(rows), "a row in use is free")
    expected: set[Sequence] = set()
    num_queued_requests = 0
    for request in requests:
        leader = request.leader
        expected.update(request.sequences.values())
        if leader.choices or leader.pending_forks:
            expected.add(leader)
        num_queued_requests += request.admitted_at is None
        _require(bool(request.live_choices), f"request {request.id} has ended and is still known")
        _require(request.sequences.keys().isdisjoint(leader.pending_forks), f"a choice of {request.id} is there twice")
    _require(set(running).isdisjoint(scheduler.waiting), "a sequence runs and waits")
    _require(set(running) | set(scheduler.waiting) == expected, "a live choice has no sequence, or an ended one has")
    _require(num_queued_requests == scheduler.num_queued_requests, "count of requests never admitted")
    for seq in scheduler.waiting:
        _require(not seq.blocks and not seq.num_computed_tokens and seq.row is None, "a waiting sequence holds blocks")
        _require(seq.num_tokens == len(seq.tokens) < seq.max_len, "a waiting sequence has nothing to do")
    for seq in running:
        _require(seq.num_computed_tokens <= seq.num_tokens <= seq.max_len, "more computed than there is")
        _require(seq.num_computed_tokens <= len(seq.blocks) * kv.block_size, "computed without a block")
        _require(seq.writable_until <= len(seq.blocks) * kv.block_size, "writable without a block")


def _check_references(scheduler: Scheduler, kv: KVCacheManager, steps: StepsInFlight) -> None:
    held = Counter(block.id for seq in scheduler.running for block in seq.blocks)
    returning = [block.id for step in steps for block in step.released]
    held.update(returning)
    _require(len(returning) == kv.num_pending_free, "count of blocks that plans in flight release")
    for block in kv.pool.blocks:
        _require(
            block.ref_count == held[block.id],
            f"block {block.id}: {block.ref_count} references, {held[block.id]} holders",
        )


def _check_free_list(kv: KVCacheManager) -> None:
    pool = kv.pool
    free = list(pool.free)
    _require(len(free) == len(set(free)) == pool.num_free, "the free list's length is wrong")
    _require(all(block.next.previous is block and block.previous.next is block for block in free), "broken link")
    _require(
        set(free) == {block for block in pool.blocks if not block.ref_count}, "free blocks are those without holder"
    )
    cached = sum(block.node is not None for block in free)
    _require(cached == pool.num_cached_free, "count of free blocks that are published")
    _require(all(block.node is not None for block in free[len(free) - cached :]), "an unpublished block is kept longer")
    place = {block.node: index for index, block in enumerate(free) if block.node is not None}
    for node, index in place.items():
        _require(
            node.parent is None or place.get(node.parent, index + 1) > index,
            "a parent would be evicted before its child",
        )


def _check_cache(kv: KVCacheManager, digest: Digest) -> None:
    nodes = kv.cache.nodes
    children = Counter(node.parent.hash for node in nodes.values() if node.parent is not None)
    seen = set()
    for block_hash, node in nodes.items():
        parent = node.parent
        _require(node.hash == block_hash and bool(node.blocks), "a hash without its block")
        _require(parent is None or nodes.get(parent.hash) is parent, "a block is held and the one before it is not")
        _require(parent is None or parent.hash in seen, "a snapshot would list a child before its parent")
        _require(parent is None or parent.held or not node.held, "a block is in use and the one before it is not")
        _require(node.children == children[block_hash], "count of children")
        _require(all(block.node is node for block in node.blocks), "a block's name is not its own")
        _require(len(node.blocks) == 1 or all(block.ref_count for block in node.blocks), "a spare duplicate has a name")
        seen.add(block_hash)
    named = {block.node for block in kv.pool.blocks if block.node is not None}
    _require(named == set(nodes.values()), "a block carries a name that is not held")
    _require(digest == Digest.of(nodes), "digest")
