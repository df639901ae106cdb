"""Rotary frequencies of every supported scaling, and the table of cosines and sines that kernels read.

The formulas are those of transformers' ``modeling_rope_utils`` (YaRN: arXiv 2309.00071). Powers, cosines and sines are
computed in fp64 and rounded once: torch's in fp32 differ in their last bit between instruction sets.
"""

import math

import torch

from octavo_engine.weights.model_config import RopeConfig, RopeKind


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """Return the frequencies ``[head_dim / 2]`` in fp32 and a factor.

    Cosines and sines are multiplied with the factor.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    inverse = (1.0 / (rope.theta**exponents)).float()
    if rope.freq_factors:
        inverse = inverse / torch.tensor(rope.freq_factors, dtype=torch.float32)
    if rope.kind is RopeKind.LINEAR:
        return inverse / rope.factor, 1.0
    if rope.kind is RopeKind.LLAMA3:
        return _llama3(inverse, rope), 1.0
    if rope.kind is RopeKind.YARN:
        return _yarn(inverse, rope, head_dim)
    return inverse, 1.0


def cos_sin_table(rope: RopeConfig, head_dim: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines, each fp32 ``[length, head_dim / 2]``."""
    inverse, scale = inverse_frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse).double()
    return (angles.cos() * scale).float(), (angles.sin() * scale).float()


def _llama3(inverse: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    original = rope.original_max_position_embeddings
    wavelength = 2 * math.pi / inverse
    slow = torch.where(wavelength > original / rope.low_freq_factor, inverse / rope.factor, inverse)
    smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - smooth) * slow / rope.factor + smooth * slow
    medium = (wavelength >= original / rope.high_freq_factor) & (wavelength <= original / rope.low_freq_factor)
    return torch.where(medium, blended, slow)


def _yarn(inverse: torch.Tensor, rope: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    def dimension_of(rotations: float) -> float:
        turns = rope.original_max_position_embeddings / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    scaled = inverse / rope.factor * ramp + inverse * (1 - ramp)
    attention = rope.attention_factor
    if attention is None:
        attention = 1.0 if rope.factor <= 1 else 0.1 * math.log(rope.factor) + 1.0
    return scaled, attention
