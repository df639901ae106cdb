"""The Mistral family: Llama with one sliding window for all layers. llama.cpp gives it the name ``llama``."""

from octavo_engine.models.family import FamilySpec
from octavo_engine.models.llama import LlamaDecoder, tensors
from octavo_engine.weights.hf_config import HfConfig, config_from_hf
from octavo_engine.weights.model_config import ModelConfig

ARCHITECTURE = "MistralForCausalLM"


def _config(hf: HfConfig) -> ModelConfig:
    window = None if hf.get("sliding_window") is None else hf.integer("sliding_window")
    return config_from_hf(hf, family=ARCHITECTURE, sliding_windows=(window,) * hf.integer("num_hidden_layers"))


MISTRAL = FamilySpec(architecture=ARCHITECTURE, config=_config, tensors=tensors, decoder=LlamaDecoder)
