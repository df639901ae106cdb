"""Emitter of LLVM instructions on vectors of floats: the words in which the register tiles are written."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from octavo_kernels.cpu.memory import constant, round_to_bf16, widen

I32, I64 = ir.IntType(32), ir.IntType(64)
_F32, _I8, _I16 = ir.FloatType(), ir.IntType(8), ir.IntType(16)


class Vectors:
    """Instructions on vectors of ``lanes`` floats, appended to ``builder``. Addresses and offsets are in bytes."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self._builder = builder
        self._lanes = lanes
        self._floats, self._ints, self._halves = (ir.VectorType(kind, lanes) for kind in (_F32, I32, _I16))

    def offset(self, address: ir.Value, by: int) -> ir.Value:
        return self._builder.add(address, ir.Constant(I64, by))

    def row(self, address: ir.Value, stride: ir.Value, index: int) -> ir.Value:
        """Return the address of the row ``index``."""
        return self._builder.add(address, self._builder.mul(stride, ir.Constant(I64, index)))

    def read(self, address: ir.Value) -> ir.Value:
        """Load floats."""
        return self._load(address, self._floats, 4)

    def read_bf16(self, address: ir.Value) -> ir.Value:
        """Load bf16 numbers as floats."""
        return widen(self._builder, self._load(address, self._halves, 2))

    def read_pairs(self, address: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Load ``2 * lanes`` bf16 numbers, and return the even and the odd ones as floats."""
        builder, both = self._builder, self._load(address, self._ints, 4)
        even = builder.shl(both, constant(self._ints, 16))
        odd = builder.and_(both, constant(self._ints, 0xFFFF0000))
        return builder.bitcast(even, self._floats), builder.bitcast(odd, self._floats)

    def read_integer(self, address: ir.Value) -> ir.Value:
        """Load one int64."""
        return self._load(address, I64, 8)

    def broadcast(self, address: ir.Value) -> ir.Value:
        """Load one float into all lanes."""
        undefined = ir.Constant(self._floats, ir.Undefined)
        one = self._builder.insert_element(undefined, self._load(address, _F32, 4), ir.Constant(I32, 0))
        return self._builder.shuffle_vector(one, undefined, constant(self._ints, 0))

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Compute ``a * b + c``, rounded once."""
        kind, name = ir.FunctionType(self._floats, [self._floats] * 3), f"llvm.fma.v{self._lanes}f32"
        return self._builder.call(cgutils.get_or_insert_function(self._builder.module, kind, name), [a, b, c])

    def write(self, address: ir.Value, value: ir.Value) -> None:
        """Store floats."""
        self._store(address, value, 4)

    def write_bf16(self, address: ir.Value, value: ir.Value) -> None:
        """Round floats to bf16 and store them."""
        self._store(address, round_to_bf16(self._builder, value), 2)

    def variable(self, value: ir.Value | None = None) -> ir.Value:
        """Return a variable for floats, 0 without ``value``. LLVM keeps it in a register."""
        slot = cgutils.alloca_once(self._builder, self._floats)
        self._builder.store(constant(self._floats, 0.0) if value is None else value, slot)
        return slot

    def accumulate(self, slot: ir.Value, a: ir.Value, b: ir.Value) -> None:
        """Add ``a * b`` to a variable, rounded once."""
        self._builder.store(self.fma(a, b, self._builder.load(slot)), slot)

    def prefetch(self, address: ir.Value) -> None:
        """Prefetch the cache line at ``address`` into every level of cache."""
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), I32, I32, I32])
        function = cgutils.get_or_insert_function(self._builder.module, kind, "llvm.prefetch.p0")
        hints = [ir.Constant(I32, value) for value in (0, 3, 1)]  # to read, keep, data
        self._builder.call(function, [self._builder.inttoptr(address, _I8.as_pointer()), *hints])

    def _load(self, address: ir.Value, kind: ir.Type, align: int) -> ir.Value:
        return self._builder.load(self._builder.inttoptr(address, kind.as_pointer()), align=align)

    def _store(self, address: ir.Value, value: ir.Value, align: int) -> None:
        self._builder.store(value, self._builder.inttoptr(address, value.type.as_pointer()), align=align)
