import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_testing.kernels import assert_near

SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 200), st.integers(1, 200))


@settings(max_examples=15, deadline=None)
@given(SHAPES, st.booleans(), st.integers(0, 2**31))
def test_product_matches_the_reference_for_any_shape(cpu, reference, dtype, shape, has_bias, seed):
    torch.manual_seed(seed)
    rows, columns, depth = shape
    weight, x = torch.randn(columns, depth).to(dtype), torch.randn(rows, depth).to(dtype)
    bias = torch.randn(columns).to(dtype) if has_bias else None
    for out_dtype in {dtype, torch.float32}:
        ours = cpu.pack_linear(weight, bias, out_dtype=out_dtype)
        assert_near(ours(x), reference.pack_linear(weight, bias, out_dtype=out_dtype)(x))
        assert (ours.in_features, ours.out_features) == (depth, columns)


def test_a_row_does_not_depend_on_the_rows_beside_it(cpu, dtype):
    torch.manual_seed(0)
    linear = cpu.pack_linear(torch.randn(250, 576).to(dtype), torch.randn(250).to(dtype))
    x = torch.randn(256, 576).to(dtype)
    whole = linear(x)
    for rows in [*range(1, 34), 63, 64, 65, 127, 128, 129, 255]:
        assert torch.equal(linear(x[:rows]), whole[:rows]), rows
        assert torch.equal(linear(x[-rows:]), whole[-rows:]), rows


def test_rows_may_be_part_of_a_wider_tensor(cpu):
    weight, wide = torch.randn(48, 32), torch.randn(5, 80)
    linear = cpu.pack_linear(weight)
    assert torch.equal(linear(wide[:, 16:48]), linear(wide[:, 16:48].contiguous()))


def test_no_rows_give_no_rows(cpu):
    assert cpu.pack_linear(torch.randn(48, 32))(torch.empty(0, 32)).shape == (0, 48)


@pytest.mark.parametrize("x", [torch.zeros(2, 31), torch.zeros(2, 32, dtype=torch.bfloat16), torch.zeros(32, 2).T])
def test_input_of_another_shape_type_or_layout_is_refused(cpu, x):
    linear = cpu.pack_linear(torch.zeros(48, 32))
    with pytest.raises(ValueError, match="allowed"):
        linear(x)


def test_a_type_that_nothing_computes_in_is_refused(cpu):
    with pytest.raises(ValueError, match=r"float16.*allowed"):
        cpu.pack_linear(torch.zeros(48, 32, dtype=torch.float16))


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_tied_embedding_is_looked_up_in_the_packed_head(cpu, dtype, kind):
    weight = torch.randn(101, 33).to(dtype)
    ids = torch.tensor([0, 100, 47, 48, 3, 3], dtype=kind)
    look_up, head = cpu.pack_embedding(weight, tied=True)
    assert torch.equal(look_up(ids), weight[ids.long()])
    assert head(weight[:2]).dtype == torch.float32
    look_up, head = cpu.pack_embedding(weight, tied=False)
    assert head is None
    assert torch.equal(look_up(ids), weight[ids.long()])


@pytest.mark.parametrize("tied", [True, False])
def test_a_token_outside_of_the_vocabulary_is_refused(cpu, tied):
    look_up, _ = cpu.pack_embedding(torch.randn(10, 8), tied=tied)
    for token in (-1, 10):
        with pytest.raises(ValueError, match=r"token_ids.*allowed: 0 to 9"):
            look_up(torch.tensor([token]))
