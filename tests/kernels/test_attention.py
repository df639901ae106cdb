import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels import for_device
from octavo_testing.kernels import PagedBatch, assert_near

SEQUENCES = st.lists(st.tuples(st.integers(1, 80), st.integers(0, 300)), min_size=1, max_size=4)
DIGESTS = {torch.float32: "c13aa1aee4cda11c", torch.bfloat16: "6681d10645899287"}
"""Recorded once. Every machine and every instruction set gives them."""
LAYOUTS = st.sampled_from([(6, 2, 64, 16), (4, 4, 80, 32), (8, 1, 128, 16), (3, 1, 40, 16), (10, 2, 96, 64)])


@settings(max_examples=15, deadline=None)
@given(SEQUENCES, LAYOUTS, st.sampled_from([0, 1, 17, 130]), st.integers(0, 2**31))
def test_mixed_batches_match_the_reference(cpu, dtype, reference, sequences, layout, window, seed):
    heads, kv_heads, head_dim, block_size = layout
    batch = PagedBatch.random(
        [new for new, _ in sequences], [new + old for new, old in sequences],
        dtype=dtype, heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, seed=seed,
    )  # fmt: skip
    mine, expected = batch.plan(cpu), batch.plan(reference)
    assert torch.equal(mine.positions, expected.positions)
    assert torch.equal(mine.slot_mapping, expected.slot_mapping)
    (out, cache), (expected_out, expected_cache) = batch.run(cpu, window), batch.run(reference, window)
    assert_near(out, expected_out)
    assert torch.equal(cache.isnan(), expected_cache.isnan())
    assert_near(cache.nan_to_num(), expected_cache.nan_to_num())


def test_a_long_decode_beside_a_short_one(cpu, reference, dtype):
    batch = PagedBatch.random([1, 1], [3000, 5], dtype=dtype)
    for window in (0, 200):
        assert_near(batch.run(cpu, window)[0], batch.run(reference, window)[0])


def test_partial_rotary_leaves_the_other_dimensions_alone(cpu, reference):
    batch = PagedBatch.random([3], [3])
    q, k, v = (torch.randn(3, n, 64) for n in (6, 2, 2))
    cos_sin = torch.randn(3, 48)
    outs = []
    for kernels in (cpu, reference):
        rotated, cache = q.clone(), batch.cache.clone()
        kernels.rotary_and_write(rotated, k.clone(), v.clone(), cos_sin, cache[:, 0], batch.plan(kernels))
        outs.append(rotated)
        assert torch.equal(rotated[..., 48:], q[..., 48:])
    torch.testing.assert_close(*outs)


def prefill_in_chunks(kernels, make, chunks, company):
    """Attention of one sequence, computed in ``chunks`` beside ``company`` decodes, as ``[T, H * D]``."""
    total = sum(chunks)
    whole = make([total], [total], seed=5)
    cache, outs, done = whole.cache.clone(), [], 0
    sizes = [n * 64 for n in (6, 2, 2)]
    for chunk in chunks:
        qkv = torch.cat([whole.qkv[done : done + chunk], torch.randn(company, whole.qkv.shape[1]).to(whole.qkv)])
        q, k, v = (part.reshape(len(qkv), -1, 64) for part in qkv.split(sizes, dim=1))
        done += chunk
        # The company shares blocks that the sequence does not use.
        spare = sorted(set(range(len(cache))) - set(whole.block_tables[0].tolist()))[0]
        tables = torch.cat([whole.block_tables, torch.full((company, whole.block_tables.shape[1]), spare).int()])
        meta = kernels.plan_attention(
            torch.tensor([0, chunk, *[1] * company]).cumsum(0).int(),
            torch.tensor([done, *[1] * company]).int(),
            tables,
            block_size=16,
            num_kv_heads=2,
        )
        kernels.rotary_and_write(q, k, v, whole.cos_sin, cache[:, 0], meta)
        outs.append(kernels.attention(q, cache[:, 0], meta, scale=0.125)[:chunk])
    return torch.cat(outs)


def test_a_row_does_not_depend_on_chunks_or_company(cpu, dtype):
    def make(*args, **kwargs):
        return PagedBatch.random(*args, dtype=dtype, **kwargs)

    whole = prefill_in_chunks(cpu, make, [230], 0)
    for chunks, company in (
        ([1] * 5 + [225], 1),
        ([7] * 32 + [6], 2),
        ([64, 64, 64, 38], 3),
        ([97, 133], 0),
        ([229, 1], 5),
    ):
        assert torch.equal(prefill_in_chunks(cpu, make, chunks, company), whole), chunks


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_that_share_a_sequence_change_no_bit(dtype, threads):
    one, many = for_device("cpu", num_threads=1), for_device("cpu", num_threads=threads)
    for new, old, kv_heads in (([1], [8000], 1), ([1, 1], [2100, 40], 2), ([40], [1500], 2), ([1], [513], 1)):
        batch = PagedBatch.random(new, old, dtype=dtype, heads=2 * kv_heads, kv_heads=kv_heads)
        assert batch.plan(one).work.part_tokens == 0
        assert batch.plan(many).work.part_tokens > 0
        for window in (0, 3, 700):
            assert torch.equal(batch.run(many, window)[0], batch.run(one, window)[0]), (new, old, window)


def exact_batch(dtype, head_dim):
    """Two decodes and a prefill of several parts, of numbers that every machine draws and rounds alike."""
    rng = np.random.default_rng(0)
    batch = PagedBatch.random([1, 1, 40], [1300, 20, 700], dtype=dtype, heads=6, head_dim=head_dim)
    drawn = {
        name: torch.from_numpy(rng.integers(-64, 65, size=getattr(batch, name).shape) / 32).to(getattr(batch, name))
        for name in ("qkv", "cache", "cos_sin")
    }
    return replace(batch, **drawn)


def test_every_instruction_set_gives_the_recorded_bits(cpu, dtype):
    """The tier ``levels`` runs this test on each instruction set. Machines of several kinds serve one stream."""
    digest = hashlib.blake2b(digest_size=8)
    for head_dim in (64, 80, 24):
        for window in (0, 200):
            out, cache = exact_batch(dtype, head_dim).run(cpu, window)
            digest.update(out.contiguous().view(torch.uint8).numpy().tobytes())
            digest.update(cache.view(torch.uint8).numpy().tobytes())
    assert digest.hexdigest() == DIGESTS[dtype]


def test_a_nan_in_one_key_reaches_the_output(cpu, dtype):
    """A score that is not a number must fail its request. A weight of 0 in its place would hide it."""
    for position in (0, 700, 1399):
        batch = PagedBatch.random([1], [1401], dtype=dtype)
        block = batch.block_tables[0, position // 16]
        batch.cache[block, 1, 0, 1, position % 16, 5] = float("nan")
        out = batch.run(cpu)[0].view(6, 64)
        assert out[3:].isnan().all(), position
        assert out[:3].isfinite().all(), position


@pytest.mark.parametrize("kind", ["cpu", "reference"])
def test_blocks_are_copied_in_order_over_all_layers(request, kind):
    kernels = request.getfixturevalue(kind)
    cache = torch.arange(4.0).view(4, 1, 1, 1, 1, 1).repeat(1, 3, 2, 1, 2, 2)
    kernels.copy_blocks(cache, [(0, 1), (1, 2)])
    assert cache[:, 0, 0, 0, 0, 0].tolist() == [0, 0, 0, 3]
    assert (cache == cache[:, :1, :1, :, :1, :1]).all()


def test_operands_that_do_not_fit_the_cache_are_refused(cpu):
    batch = PagedBatch.random([2], [2])
    meta, layer = batch.plan(cpu), batch.cache[:, 0]
    with pytest.raises(ValueError, match=r"q:.*allowed"):
        cpu.attention(torch.zeros(2, 6, 32), layer, meta, scale=1.0)
    with pytest.raises(ValueError, match=r"kv_layer.*one piece"):
        cpu.attention(torch.zeros(2, 6, 64), layer.transpose(1, 2), meta, scale=1.0)
    with pytest.raises(ValueError, match=r"block_size: 24, allowed: a multiple of 16"):
        cpu.plan_attention(meta.query_start_loc, meta.seq_lens, meta.block_tables, block_size=24, num_kv_heads=2)
    with pytest.raises(ValueError, match=r"seq_lens.*int32"):
        cpu.plan_attention(meta.query_start_loc, meta.seq_lens.long(), meta.block_tables, block_size=16, num_kv_heads=2)
