import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_testing.kernels import assert_near

ROWS, WIDTHS = st.integers(1, 70), st.sampled_from([8, 24, 64, 96, 576])
SEEDS = st.integers(0, 2**31)


@settings(max_examples=15, deadline=None)
@given(ROWS, WIDTHS, SEEDS)
def test_norms_match_the_reference(cpu, reference, dtype, rows, width, seed):
    torch.manual_seed(seed)
    x, residual, weight = (torch.randn(n, width).to(dtype) for n in (rows, rows, 1))
    weight = weight[0]
    assert_near(cpu.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    mine, theirs = residual.clone(), residual.clone()
    normed = cpu.add_rms_norm(x, mine, weight, 1e-5)
    assert_near(normed, reference.add_rms_norm(x, theirs, weight, 1e-5))
    assert torch.equal(mine, theirs)


@settings(max_examples=10, deadline=None)
@given(ROWS, st.integers(1, 5), SEEDS)
def test_head_norm_changes_its_heads_and_nothing_beside_them(cpu, reference, dtype, rows, heads, seed):
    torch.manual_seed(seed)
    fused = torch.randn(rows, (heads + 2) * 64).to(dtype)
    weight, expected = torch.randn(64).to(dtype), fused.clone()
    for kernels, tensor in ((cpu, fused), (reference, expected)):
        kernels.head_rms_norm(tensor[:, 64 : 64 * (heads + 1)].view(rows, heads, 64), weight, 1e-6)
    assert_near(fused, expected)
    assert torch.equal(fused[:, :64], expected[:, :64])


@settings(max_examples=15, deadline=None)
@given(ROWS, WIDTHS, SEEDS)
def test_activations_match_the_reference(cpu, reference, dtype, rows, width, seed):
    torch.manual_seed(seed)
    gate_up = (torch.randn(rows, 2 * width) * 10).to(dtype)
    assert_near(cpu.silu_and_mul(gate_up), reference.silu_and_mul(gate_up))
    assert_near(cpu.gelu_and_mul(gate_up), reference.gelu_and_mul(gate_up))


def test_activations_are_finite_where_exp_is_not(cpu, reference):
    gate = torch.tensor([[-1e4, -200.0, -88.0, 0.0, 88.0, 200.0, 1e4, -0.0]])
    gate_up = torch.cat([gate, torch.ones_like(gate)], dim=1)
    for name in ("silu_and_mul", "gelu_and_mul"):
        torch.testing.assert_close(
            getattr(cpu, name)(gate_up), getattr(reference, name)(gate_up), rtol=1e-5, atol=1e-30
        )


def test_a_row_does_not_depend_on_the_rows_beside_it(cpu, dtype):
    torch.manual_seed(0)
    x, weight = torch.randn(200, 576).to(dtype), torch.randn(576).to(dtype)
    normed, activated = cpu.rms_norm(x, weight, 1e-5), cpu.silu_and_mul(x)
    for rows in (1, 2, 3, 7, 33, 100, 199):
        assert torch.equal(cpu.rms_norm(x[:rows], weight, 1e-5), normed[:rows])
        assert torch.equal(cpu.silu_and_mul(x[:rows]), activated[:rows])


def test_wrong_operands_are_refused(cpu):
    x, weight = torch.zeros(4, 64), torch.zeros(64)
    with pytest.raises(ValueError, match=r"weight.*allowed"):
        cpu.rms_norm(x, weight.bfloat16(), 1e-5)
    with pytest.raises(ValueError, match=r"residual.*allowed"):
        cpu.add_rms_norm(x, torch.zeros(3, 64), weight, 1e-5)
    with pytest.raises(ValueError, match=r"gate_up.*contiguous"):
        cpu.silu_and_mul(torch.zeros(64, 4).T)


def test_a_device_without_backend_is_refused():
    import octavo_kernels

    with pytest.raises(ValueError, match=r"device: 'tpu', allowed: 'cpu'"):
        octavo_kernels.for_device("tpu")
