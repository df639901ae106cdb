"""Loading as a whole: a small random model from a folder, and the embedded one."""

import dataclasses
import gc
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from octavo_api.errors import ConfigurationError, ModelError, NotEnoughMemory
from octavo_api.sampling import SamplingParams
from octavo_api.settings import Dtype, EngineSettings
from octavo_api.startup.model_source import EMBEDDED, locate
from octavo_engine.core.request import NewRequest
from octavo_engine.llm_engine import LLMEngine
from octavo_engine.models.registry import read_config, tensors_of
from octavo_engine.startup.engine_plan import plan_engine
from octavo_engine.startup.loading import load_engine
from octavo_engine.startup.machine import Machine
from octavo_engine.startup.memory_plan import PANEL_WIDTH
from octavo_engine.weights.hf_config import HfConfig

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "eos_token_id": [2, 5],
}


def write_model(folder: Path, seed: int = 0, **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    noise = torch.Generator().manual_seed(seed)
    shapes = tensors_of(read_config(HfConfig.read(folder)))
    save_file(
        {name: torch.randn(shape, generator=noise) * 0.2 for name, shape in shapes.items()},
        folder / "model.safetensors",
    )
    return folder


def settings(**changes) -> EngineSettings:
    return EngineSettings(**{"kv_cache_memory_bytes": 2**20, "num_threads": 2, **changes})


def generate(engine, prompts: list[list[int]], count: int, **changes) -> list[list[int]]:
    """Return the greedy tokens of all prompts, computed together; ``changes`` are of the ``CoreConfig``."""
    llm_engine = LLMEngine(dataclasses.replace(engine.core_config, **changes), engine.runner)
    greedy = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        llm_engine.add_request(NewRequest(index, prompt, None, greedy))
    outputs: list[list[int]] = [[] for _ in prompts]
    while llm_engine.has_unfinished_requests:
        for item in llm_engine.step():
            outputs[item.request_id] += item.token_ids
    return outputs


def test_a_folder_becomes_an_engine_that_runs(tmp_path):
    folder = write_model(tmp_path / "model")
    heard: list[str] = []
    engine = load_engine(
        folder.as_uri(),
        None,
        settings(max_num_seqs=4, dtype=Dtype.FLOAT32),
        num_cpus=2,
        replicas_on_node=1,
        memory_limit=None,
        report=heard.append,
    )
    core = engine.core_config
    assert (core.max_model_len, core.max_num_seqs, core.eos_token_ids) == (128, 4, {2, 5})
    assert core.num_blocks == 2**20 // (2 * 2 * 16 * 32 * 4)
    assert (core.model_key, core.kv_dtype) == (engine.model_key, engine.kv_dtype)
    assert engine.vocab_size == 128
    assert any("reading weights 2/2" in text for text in heard)
    (tokens,) = generate(engine, [[3, 4, 5]], 10)
    assert len(tokens) == 10


def test_model_key_follows_weights_and_dtype_and_not_the_place(tmp_path):
    def key(folder: Path, **changes) -> str:
        return load_engine(folder.as_uri(), None, settings(**changes)).model_key

    first = write_model(tmp_path / "a")
    assert key(first) == key(write_model(tmp_path / "b"))
    assert key(first) != key(write_model(tmp_path / "c", seed=1))
    assert key(first, dtype=Dtype.FLOAT32) != key(first, dtype=Dtype.BFLOAT16)


def test_dtype_auto_is_bfloat16_on_every_processor(tmp_path):
    engine = load_engine(write_model(tmp_path / "m").as_uri(), None, settings())
    assert engine.dtype == engine.kv_dtype == "bfloat16"
    assert engine.runner.kv_cache.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
@pytest.mark.parametrize("tied", [True, False])
def test_the_memory_plan_counts_every_copy_of_the_weights(tmp_path, dtype, tied):
    shape = {"vocab_size": 3001, "hidden_size": 192, "intermediate_size": 500, "tie_word_embeddings": tied}
    folder = write_model(tmp_path / "model", attention_bias=True, **shape)
    files = locate(folder.as_uri(), None)
    plan = plan_engine(files, settings(dtype=dtype))
    before = live_tensor_bytes()
    engine = load_engine(folder.as_uri(), None, settings(dtype=dtype))
    held = live_tensor_bytes() - before - engine.runner.kv_cache.nbytes
    rows = engine.runner._rows
    buffers = sum(array.nbytes for array in (rows.token_ids, rows.block_tables))
    assert plan.memory.rows == buffers
    assert 0.98 * plan.memory.weights < held - rows.token_ids.nbytes <= plan.memory.weights


def test_the_memory_plan_knows_the_widest_panel():
    from octavo_kernels.cpu.instruction_set import TARGETS

    assert max(target.tile.width for levels in TARGETS.values() for target in levels.values()) == PANEL_WIDTH


def live_tensor_bytes() -> int:
    """Bytes of all tensors that something in this process refers to, shared memory counted once."""
    gc.collect()
    tensors = [item for item in gc.get_objects() if type(item) is torch.Tensor]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def test_errors_of_start_up_name_the_setting_to_change(tmp_path):
    folder = write_model(tmp_path / "model").as_uri()
    with pytest.raises(ModelError, match="no such file or folder"):
        load_engine((tmp_path / "nothing").as_uri(), None, settings())
    with pytest.raises(ConfigurationError, match="max_model_len: got 500, allowed: at most the model's 128"):
        load_engine(folder, None, settings(max_model_len=500))
    with pytest.raises(NotEnoughMemory, match=r"the replica's limit is 0\.02 GiB"):
        load_engine(folder, None, settings(), memory_limit=2**24)


@pytest.mark.parametrize(("own", "share"), [(2**25, "0.03"), (2**40, "0.06")])
def test_a_memory_limit_is_one_replicas_and_the_machines_is_shared(tmp_path, own, share):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {2**28 // 1024} kB\n")
    folder = write_model(tmp_path / "model").as_uri()
    with pytest.raises(NotEnoughMemory, match=f"the replica's limit is {share} GiB"):
        load_engine(
            folder,
            None,
            settings(kv_cache_memory_bytes=2**30),
            memory_limit=own,
            replicas_on_node=4,
            machine=Machine(tmp_path),
        )


@pytest.fixture(scope="module")
def embedded():
    return load_engine(EMBEDDED, None, EngineSettings(dtype=Dtype.FLOAT32, num_threads=2, max_num_seqs=32))


@pytest.fixture(scope="module")
def transformers_model():
    """transformers' Llama with the tensors that the engine dequantises."""
    from octavo_testing.engine.transformers_model import hf_model  # seconds

    return hf_model(torch.float32)


TEXTS = (
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):",
    "Water boils at",
    "In the year 1969,",
    "The quick brown fox",
    "To be, or not to be",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,",
    "The mitochondria is",
    "Roses are red",
    "import numpy as np",
    "She opened the door and",
    "The theory of relativity",
    "Ingredients: flour,",
    "Q: What is the largest planet?",
    "The stock market",
    "On a cold winter",
    "Python is a programming language",
    "Thank you for",
)


def encode(texts: tuple[str, ...]) -> list[list[int]]:
    """Longest matches in the vocabulary: not the tokenizer's split, but tokens of real text."""
    from octavo_engine.weights.gguf_file import GgufFile

    ids = {token: i for i, token in enumerate(GgufFile(locate(EMBEDDED).path).metadata["tokenizer.ggml.tokens"])}
    prompts = []
    for text in texts:
        rest, prompt = text.replace(" ", "Ġ"), []
        while rest:
            length = next(n for n in range(len(rest), 0, -1) if rest[:n] in ids)
            prompt.append(ids[rest[:length]])
            rest = rest[length:]
        prompts.append(prompt)
    return prompts


@pytest.mark.model
@torch.inference_mode()
def test_greedy_tokens_of_the_embedded_model_are_those_of_transformers(embedded, transformers_model):
    prompts = encode(TEXTS)
    outputs = generate(embedded, prompts, 64, long_prefill_token_threshold=3)
    for prompt, output in zip(prompts, outputs, strict=True):
        # A forward pass over prompt and answer has the choice of transformers after each token.
        logits = transformers_model(torch.tensor([prompt + output])).logits[0]
        assert logits.argmax(-1)[len(prompt) - 1 : -1].tolist() == output
    generated = transformers_model.generate(
        torch.tensor([prompts[0]]), max_new_tokens=32, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert generated[0, len(prompts[0]) :].tolist() == outputs[0][:32]


@pytest.mark.model
def test_the_embedded_model_knows_paris(embedded):
    words = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    from octavo_engine.weights.gguf_file import GgufFile

    tokens = GgufFile(locate(EMBEDDED).path).metadata["tokenizer.ggml.tokens"]
    parts = words.replace("<|im_start|>", "\0<|im_start|>\0").replace("<|im_end|>", "\0<|im_end|>\0").split("\0")
    prompt: list[int] = []
    for part in parts:
        if part.startswith("<|"):
            prompt.append(tokens.index(part))
        elif part:
            (ids,) = encode((part.replace("\n", "Ċ"),))
            prompt += ids
    (output,) = generate(embedded, [prompt], 12)
    text = "".join(tokens[token] for token in output)
    assert "Paris" in text
