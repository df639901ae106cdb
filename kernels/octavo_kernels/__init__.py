"""Operations of the model on one device: one interface, a backend for each kind of device."""

from octavo_kernels.interface import AttentionMetadata, Kernels, Linear, LogitsPenalties, SamplingBatch


def for_device(device: str, *, batch_invariant: bool = False, num_threads: int = 0) -> Kernels:
    """Returns the kernels for ``device`` (``"cpu"``), which run on ``num_threads`` threads (0: all of this process).

    With ``batch_invariant`` a row's result does not depend, bit for bit, on the rows beside it, on how a sequence is
    cut into chunks, or on the order of the batch. Raises ``ValueError`` for a device that has no backend.
    """
    if device == "cpu":
        from octavo_kernels.cpu import CpuKernels

        return CpuKernels(batch_invariant=batch_invariant, num_threads=num_threads)
    raise ValueError(f"device: {device!r}, allowed: 'cpu'")


__all__ = ["AttentionMetadata", "Kernels", "Linear", "LogitsPenalties", "SamplingBatch", "for_device"]
