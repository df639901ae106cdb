"""A GGUF file as a checkpoint: names mapped, llama's permuted query and key rows restored."""

from pathlib import Path
from typing import TYPE_CHECKING

from octavo_engine.weights.checkpoint import Shape
from octavo_engine.weights.fingerprint import fingerprint
from octavo_engine.weights.gguf_config import ROPE_FREQS, config_from_gguf
from octavo_engine.weights.gguf_file import GgufFile
from octavo_engine.weights.model_config import Family

if TYPE_CHECKING:
    import torch

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufCheckpoint:
    """A ``Checkpoint``. A tensor without a counterpart keeps its GGUF name, so that errors can name it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GgufFile(path)
        factors: tuple[float, ...] = ()
        if ROPE_FREQS in self._file.tensors:
            import torch

            factors = tuple(self._file.read(ROPE_FREQS, torch.float32).tolist())
        self.config = config_from_gguf(self._file.metadata, self._file.tensors.keys(), factors, where=str(path))
        self._names = {hf_name(name): name for name in self._file.tensors if name != ROPE_FREQS}
        self.shapes: dict[str, Shape] = {new: self._file.tensors[old].shape for new, old in self._names.items()}

    def read(self, name: str, dtype: "torch.dtype") -> "torch.Tensor":
        tensor = self._file.read(self._names[name], dtype)
        if self.config.family is Family.QWEN2:
            return tensor
        if ".q_proj." in name:
            return _interleaved_to_halves(tensor, self.config.num_heads)
        if ".k_proj." in name:
            return _interleaved_to_halves(tensor, self.config.num_kv_heads)
        return tensor

    def fingerprint(self) -> str:
        return fingerprint([self.path], self._file.header_bytes)


def hf_name(name: str) -> str:
    """Return transformers' name of a GGUF tensor, or the name itself if there is none."""
    stem, _, suffix = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{suffix}"
    block, _, part = stem.removeprefix("blk.").partition(".")
    if stem.startswith("blk.") and part in _LAYER:
        return f"model.layers.{block}.{_LAYER[part]}.{suffix}"
    return name


def _interleaved_to_halves(tensor: "torch.Tensor", heads: int) -> "torch.Tensor":
    """Undo ``permute`` of llama.cpp's converter: pairs of rows ``(2i, 2i+1)`` become rows ``(i, i + head/2)``."""
    rows = tensor.shape[0]
    pairs = tensor.view(heads, rows // heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape).contiguous()
