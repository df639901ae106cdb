"""The choice of an instruction set, and products that are equal whatever the shape of their tile."""

import platform

import numba
import numpy as np
import pytest
import torch

from octavo_kernels.cpu import instruction_set
from octavo_kernels.cpu.instruction_set import (
    TARGETS,
    InstructionSet,
    TileShape,
    choose_instruction_set,
    host_instruction_sets,
    instruction_sets_of,
)
from octavo_kernels.cpu.memory import BF16, F32
from octavo_kernels.cpu.tiles import make_tile

GENERIC = {"sse4.2", "popcnt", "fma"}
AVX2 = GENERIC | {"avx2", "bmi", "bmi2", "f16c", "lzcnt", "movbe"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
SHAPES = sorted({target.tile for targets in TARGETS.values() for target in targets.values()}, key=str)


@pytest.mark.parametrize(
    ("machine", "features", "expected"),
    [
        ("x86_64", AVX512 | {"avx512bf16"}, ["avx512", "avx2", "generic"]),
        ("x86_64", AVX512 - {"avx512vl"}, ["avx2", "generic"]),
        ("x86_64", AVX2, ["avx2", "generic"]),
        ("x86_64", AVX2 - {"fma"}, []),
        ("x86_64", GENERIC, ["generic"]),
        ("aarch64", {"neon"}, ["generic"]),
        ("riscv64", {"v"}, []),
    ],
)
def test_a_processor_has_the_levels_whose_features_it_has(machine, features, expected):
    assert instruction_sets_of(machine, features) == expected


def test_the_best_level_is_taken_unless_one_is_forced():
    usable = [InstructionSet.AVX2, InstructionSet.GENERIC]
    assert choose_instruction_set("", usable) is InstructionSet.AVX2
    assert choose_instruction_set("generic", usable) is InstructionSet.GENERIC


@pytest.mark.parametrize("forced", ["avx512", "sse9"])
def test_a_level_that_the_processor_lacks_is_refused_by_name(forced):
    usable = [InstructionSet.AVX2, InstructionSet.GENERIC]
    expected = f"OCTAVO_CPU_ISA: got '{forced}', allowed on this processor: avx2, generic"
    with pytest.raises(ValueError, match=expected):
        choose_instruction_set(forced, usable)


def test_a_processor_without_any_level_is_refused():
    with pytest.raises(ValueError, match=r"processor: .* allowed: x86-64 with FMA, 64-bit Arm"):
        choose_instruction_set("", [])


def test_the_selected_level_is_one_of_this_processor():
    assert instruction_set.SELECTED in host_instruction_sets()
    assert instruction_set.TARGET is TARGETS[platform.machine()][instruction_set.SELECTED]


def product(shape: TileShape, rows: int, x, weights, bias, tag, out_tag) -> np.ndarray:
    """``x @ weights + bias`` by one tile of ``shape`` after another, compiled here for this processor."""
    tile = make_tile(shape.lanes, rows, shape.vectors)
    (depth, columns), stride = weights.shape, shape.width * 4

    @numba.njit
    def multiply(x, k, w, init, c, w_tag, c_tag):
        tile(x, k * 4, w, stride, k, init, 0, c, stride, w_tag, c_tag)

    found = np.empty((rows, columns), np.float32)
    for column in range(0, columns, shape.width):
        panel = weights[:, column : column + shape.width]
        if tag is BF16:
            panel = panel.reshape(depth // 2, 2, shape.width).transpose(0, 2, 1)
        panel, out = np.ascontiguousarray(panel), np.empty((rows, shape.width), np.float32)
        init = np.ascontiguousarray(bias[column : column + shape.width])
        multiply(x.ctypes.data, depth, panel.ctypes.data, init.ctypes.data, out.ctypes.data, tag, out_tag)
        found[:, column : column + shape.width] = out
    return found


@pytest.mark.parametrize("tag", [F32, BF16], ids=["fp32", "bf16"])
def test_a_product_has_the_same_bits_in_tiles_of_every_shape(tag):
    draw = torch.Generator().manual_seed(3)
    depth, columns = 130, 48
    x = torch.randn(8, depth, generator=draw).numpy()
    weights, bias = torch.randn(depth, columns, generator=draw), torch.randn(columns, generator=draw).numpy()
    operands = weights.numpy() if tag is F32 else weights.bfloat16().view(torch.uint16).numpy()
    expected = None
    for shape in SHAPES:
        for rows in (1, shape.rows):
            found = product(shape, rows, x[:rows].copy(), operands, bias, tag, F32)
            if expected is None:
                expected = product(shape, 8, x, operands, bias, tag, F32)
            assert np.array_equal(found, expected[:rows]), (shape, rows)
