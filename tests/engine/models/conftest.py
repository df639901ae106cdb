"""Small random models as transformers writes them, and our model beside them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import octavo_kernels
from octavo_engine.models.registry import load_model, open_folder
from octavo_kernels.reference import ReferenceKernels

SHAPE = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
BLOCK_SIZE = 16


@pytest.fixture(scope="session")
def save_random(tmp_path_factory) -> Callable:
    """``save(family, **changes) -> (folder, transformers' model in fp32)``; biases are random too."""

    import transformers  # seconds

    def save(family: str, **changes):
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**{**SHAPE, **changes})
        model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias") or "norm" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        folder = tmp_path_factory.mktemp(family)
        model.save_pretrained(folder)
        return folder, model

    return save


@pytest.fixture(scope="session", params=["reference", "cpu"])
def kernels(request):
    return ReferenceKernels() if request.param == "reference" else octavo_kernels.for_device("cpu", num_threads=2)


@pytest.fixture(scope="session")
def our_logits(kernels) -> Callable:
    """``logits(folder, prompts) -> [one [len, vocab] tensor per prompt]``, all prompts in one flat batch."""

    @torch.inference_mode()
    def logits(folder: Path, prompts: list[list[int]], dtype: torch.dtype = torch.float32):
        checkpoint = open_folder(folder)
        config = checkpoint.config
        model = load_model(checkpoint, kernels, dtype, config.max_model_len)
        lens = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int32)
        blocks = -(-int(lens.max()) // BLOCK_SIZE)
        tables = torch.arange(len(prompts) * blocks, dtype=torch.int32).flip(0).view(len(prompts), blocks)
        cache = torch.zeros(
            tables.numel(), config.num_layers, 2, config.num_kv_heads, BLOCK_SIZE, config.head_dim, dtype=dtype
        )
        starts = torch.cat([torch.zeros(1, dtype=torch.int32), lens.cumsum(0).int()])
        meta = kernels.plan_attention(starts, lens, tables, block_size=BLOCK_SIZE, num_kv_heads=config.num_kv_heads)
        tokens = torch.tensor([token for prompt in prompts for token in prompt], dtype=torch.int32)
        hidden = model.forward(tokens, cache.unbind(1), meta, None)
        return model.logits(hidden).split(lens.tolist())

    return logits
