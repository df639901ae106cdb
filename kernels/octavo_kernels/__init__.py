"""Operations of the model on one device: one interface, a backend for each kind of device."""

from octavo_kernels.interface import AttentionMetadata, Kernels, Linear, LogitsPenalties, SamplingBatch


def for_device(device: str, *, num_threads: int = 0) -> Kernels:
    """Return the kernels for ``device``; the only device is ``"cpu"``.

    The kernels run on ``num_threads`` threads. With 0 they use one thread for each processor that this process may use.
    On ``"cpu"`` a row's result depends on the row alone, bit for bit. It does not depend on the rows beside it, the
    chunks of its sequence, the order of the batch, the threads or the instruction set.

    Raises ``ValueError`` for a device that has no backend. It also raises ``ValueError`` for a processor or an
    ``OCTAVO_CPU_ISA`` without an instruction set to compile for.
    """
    if device == "cpu":
        from octavo_kernels.cpu import CpuKernels

        return CpuKernels(num_threads=num_threads)
    raise ValueError(f"device: {device!r}, allowed: 'cpu'")


__all__ = ["AttentionMetadata", "Kernels", "Linear", "LogitsPenalties", "SamplingBatch", "for_device"]
