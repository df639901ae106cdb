"""Operations of the model on one device: one interface, a backend for each kind of device."""

from octavo_kernels.interface import AttentionMetadata, Kernels, Linear, LogitsPenalties, SamplingBatch


def for_device(device: str, *, num_threads: int = 0) -> Kernels:
    """Returns the kernels for ``device`` (``"cpu"``), which run on ``num_threads`` threads (0: all of this process).

    On ``"cpu"`` a row's result depends on the row alone, bit for bit: not on the rows beside it, on the chunks of its
    sequence, on the order of the batch, on the threads or on the instruction set. Raises ``ValueError`` for a device
    that has no backend, and for a processor or an ``OCTAVO_CPU_ISA`` without an instruction set to compile for.
    """
    if device == "cpu":
        from octavo_kernels.cpu import CpuKernels

        return CpuKernels(num_threads=num_threads)
    raise ValueError(f"device: {device!r}, allowed: 'cpu'")


__all__ = ["AttentionMetadata", "Kernels", "Linear", "LogitsPenalties", "SamplingBatch", "for_device"]
