"""The instruction set that the kernels are compiled for: chosen once per process, from a table.

The kernels are compiled for a level (``x86-64-v3``), never for one model of processor, so that processors of one level
share compiled code. Every level computes the same bits: the width of a vector never changes an order of sums.
``OCTAVO_CPU_ISA`` forces a level that the processor has. Tests run all levels this way.
"""

import os
import platform
from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum

import numba
from llvmlite import binding as llvm

VARIABLE = "OCTAVO_CPU_ISA"


class InstructionSet(StrEnum):
    """Levels, best first. ``generic`` has vectors of 128 bits: x86 with FMA, and every 64-bit Arm."""

    AVX512 = "avx512"
    AVX2 = "avx2"
    GENERIC = "generic"


@dataclass(frozen=True, slots=True)
class TileShape:
    """Shape of a tile: ``lanes`` floats in a vector, ``vectors`` in a row of a panel, ``rows`` in the largest tile.

    The shape follows the register file: accumulators, one row of the right operand and one broadcast must fit.
    """

    lanes: int
    vectors: int
    rows: int

    @property
    def width(self) -> int:
        """Number of floats in a row of a panel."""
        return self.lanes * self.vectors


@dataclass(frozen=True, slots=True)
class Target:
    """LLVM's name of a level and the features it adds, the features a processor must have, and the tile's shape."""

    cpu: str
    features: str
    needs: frozenset[str]
    tile: TileShape


_X86_FMA = frozenset({"sse4.2", "popcnt", "fma"})
_X86_AVX2 = _X86_FMA | {"avx2", "bmi", "bmi2", "f16c", "lzcnt", "movbe"}
_X86_AVX512 = _X86_AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
TARGETS = {
    "x86_64": {
        InstructionSet.AVX512: Target("x86-64-v4", "", _X86_AVX512, TileShape(lanes=16, vectors=3, rows=8)),
        InstructionSet.AVX2: Target("x86-64-v3", "", _X86_AVX2, TileShape(lanes=8, vectors=2, rows=6)),
        InstructionSet.GENERIC: Target("x86-64-v2", "+fma", _X86_FMA, TileShape(lanes=4, vectors=2, rows=6)),
    },
    "aarch64": {
        InstructionSet.GENERIC: Target("generic", "", frozenset({"neon"}), TileShape(lanes=4, vectors=4, rows=6)),
    },
}
"""Targets by ``platform.machine()``."""


def instruction_sets_of(machine: str, features: Set[str]) -> list[InstructionSet]:
    """Return the levels that a processor with ``features`` (LLVM's names) has, best first."""
    return [level for level, target in TARGETS.get(machine, {}).items() if target.needs <= features]


def choose_instruction_set(forced: str, usable: list[InstructionSet]) -> InstructionSet:
    """Return the forced level, or the best one if ``forced`` is empty.

    Raises ``ValueError`` for a level that is unknown or not in ``usable``, and for a processor that has none.
    """
    if not usable:
        raise ValueError("processor: it has none of the instruction sets allowed: x86-64 with FMA, 64-bit Arm")
    if not forced:
        return usable[0]
    if forced not in usable:
        raise ValueError(f"{VARIABLE}: got {forced!r}, allowed on this processor: {', '.join(usable)}")
    return InstructionSet(forced)


def host_instruction_sets() -> list[InstructionSet]:
    """Return the levels of this processor, best first."""
    features = {name for name, has in llvm.get_host_cpu_features().items() if has}
    return instruction_sets_of(platform.machine(), features)


SELECTED = choose_instruction_set(os.environ.get(VARIABLE, ""), host_instruction_sets())
TARGET = TARGETS[platform.machine()][SELECTED]
TILE = TARGET.tile

# Numba compiles all of a process for one target and reads its name at the first compilation.
numba.config.CPU_NAME, numba.config.CPU_FEATURES = TARGET.cpu, TARGET.features
