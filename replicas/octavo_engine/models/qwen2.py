"""The Qwen2 family: Llama with biases of query, key and value, and sliding windows in some layers."""

from octavo_engine.models.family import FamilySpec, GgufSpec
from octavo_engine.models.llama import GGUF_NAMES, LlamaDecoder, biases, tensors
from octavo_engine.weights.gguf_config import GgufConfig, config_from_gguf
from octavo_engine.weights.hf_config import HfConfig, config_from_hf
from octavo_engine.weights.model_config import ModelConfig

ARCHITECTURE = "Qwen2ForCausalLM"


def _config(hf: HfConfig) -> ModelConfig:
    return config_from_hf(hf, family=ARCHITECTURE, qkv_bias=True, sliding_windows=_sliding_windows(hf))


def _sliding_windows(hf: HfConfig) -> tuple[int | None, ...]:
    layers = hf.integer("num_hidden_layers")
    if not hf.boolean("use_sliding_window", False) or not hf.get("sliding_window"):
        return (None,) * layers
    window = hf.integer("sliding_window")
    kinds = hf.get("layer_types")
    if kinds is None:
        first = hf.get("max_window_layers") or 0
        kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _config_from_gguf(gguf: GgufConfig) -> ModelConfig:
    return config_from_gguf(gguf, family=ARCHITECTURE, **biases(gguf))


QWEN2 = FamilySpec(
    architecture=ARCHITECTURE,
    config=_config,
    tensors=tensors,
    decoder=LlamaDecoder,
    gguf=GgufSpec("qwen2", _config_from_gguf, GGUF_NAMES),
)
