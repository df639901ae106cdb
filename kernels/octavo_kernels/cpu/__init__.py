"""Kernels for processors: Numba, with matrix products on LLVM vectors."""

from octavo_kernels.cpu.kernels import CpuKernels

__all__ = ["CpuKernels"]
