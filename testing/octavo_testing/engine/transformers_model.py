"""The embedded model in transformers, with the very weights that the engine computes with."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from octavo_api.startup.model_source import EMBEDDED, locate
from octavo_engine.models.registry import open_checkpoint


def hf_model(dtype: torch.dtype) -> LlamaForCausalLM:
    """Return the model, dequantised by our reader, in ``dtype`` and ready to generate."""
    checkpoint = open_checkpoint(locate(EMBEDDED))
    ours = checkpoint.config
    config = LlamaConfig(
        vocab_size=ours.vocab_size,
        hidden_size=ours.hidden_size,
        intermediate_size=ours.intermediate_size,
        num_hidden_layers=ours.num_layers,
        num_attention_heads=ours.num_heads,
        num_key_value_heads=ours.num_kv_heads,
        head_dim=ours.head_dim,
        rms_norm_eps=ours.rms_norm_eps,
        max_position_embeddings=ours.max_model_len,
        rope_parameters={"rope_type": "default", "rope_theta": ours.rope.theta},
        tie_word_embeddings=ours.tie_word_embeddings,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    weights = {name: checkpoint.read(name, dtype) for name in checkpoint.shapes}
    model.to_empty(device="cpu").to(dtype)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()
