"""Writer of small random models as GGUF files, with the package ``gguf``."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, INNER, LAYERS, VOCABULARY = 256, 8, 4, 256, 2, 96


def write_gguf(
    path: Path,
    kind: str = "Q8_0",
    *,
    arch: str = "llama",
    leave_out: Collection[str] = (),
    changes: Mapping[str, int | float | str] | None = None,
    biases: bool = False,
    freq_factors: Sequence[float] | None = None,
) -> dict[str, np.ndarray]:
    """Write a model with the same random weights each time; return them in fp32, before quantisation to ``kind``."""
    draw = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, arch)
    values = {
        "context_length": 128,
        "embedding_length": HIDDEN,
        "block_count": LAYERS,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "vocab_size": VOCABULARY,
        **(changes or {}),
    }
    for key, value in values.items():
        if isinstance(value, str):
            writer.add_string(f"{arch}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        else:
            writer.add_uint32(f"{arch}.{key}", value)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{arch}.rope.freq_base", 5000.0)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 7)
    writer.add_uint32("tokenizer.ggml.eot_token_id", 9)
    writer.add_token_list([f"t{i}" for i in range(VOCABULARY)])
    shapes = _shapes(biases)
    tensors: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        if name in leave_out:
            continue
        tensors[name] = draw.normal(0, 0.1, shape).astype(np.float32)
        quantised = gguf.GGMLQuantizationType[kind] if len(shape) == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(tensors[name], quantised), raw_dtype=quantised)
    if freq_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(freq_factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _shapes(biases: bool) -> dict[str, tuple[int, ...]]:
    head = HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCABULARY, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "output.weight": (VOCABULARY, HIDDEN),
    }
    for block in range(LAYERS):
        shapes |= {
            f"blk.{block}.{name}.weight": shape
            for name, shape in {
                "attn_norm": (HIDDEN,),
                "attn_q": (HEADS * head, HIDDEN),
                "attn_k": (KV_HEADS * head, HIDDEN),
                "attn_v": (KV_HEADS * head, HIDDEN),
                "attn_output": (HIDDEN, HIDDEN),
                "ffn_norm": (HIDDEN,),
                "ffn_gate": (INNER, HIDDEN),
                "ffn_up": (INNER, HIDDEN),
                "ffn_down": (HIDDEN, INNER),
            }.items()
        }
        if biases:
            shapes |= {f"blk.{block}.attn_{x}.bias": (HEADS * head if x == "q" else KV_HEADS * head,) for x in "qkv"}
    return shapes


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return query or key rows in the order in which llama.cpp's converter writes them."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
