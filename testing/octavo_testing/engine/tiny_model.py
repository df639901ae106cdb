"""A tiny random Llama, runners over it, and runs of the real core through a runner."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

import octavo_kernels
from octavo_api.sampling import SamplingParams
from octavo_api.settings import EngineSettings
from octavo_engine.core.plan import Logprobs
from octavo_engine.core.request import NewRequest
from octavo_engine.core.stats import CoreLoad
from octavo_engine.llm_engine import LLMEngine
from octavo_engine.models.registry import load_model, open_folder, read_config, tensors_of
from octavo_engine.runner.model_runner import ModelRunner
from octavo_engine.weights.checkpoint import Checkpoint
from octavo_engine.weights.hf_config import HfConfig
from octavo_kernels import Kernels
from octavo_kernels.reference import ReferenceKernels
from octavo_testing.engine.core_requests import create_config
from octavo_testing.engine.preemption import preempt, running_sequences

VOCABULARY = 512
EOS = 3
MAX_MODEL_LEN = 96
BLOCK_SIZE = 16
NUM_ROWS = 12
NUM_BLOCKS = 2000
CORE_BLOCKS = 1900
"""Blocks that the core allocates. Tests use the others."""
FEW_BLOCKS = 16
"""Blocks of a disturbed run: less than its requests need together."""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": MAX_MODEL_LEN,
    "eos_token_id": EOS,
    "tie_word_embeddings": True,
}

Request = tuple[Sequence[int], SamplingParams]
"""Prompt and sampling. Every request runs to its ``max_tokens``."""


@dataclass(slots=True)
class Answer:
    """The output of one choice."""

    output: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)


Answers = dict[tuple[int, int], Answer]
"""Answers by number of the request and choice."""


def write_checkpoint(folder: Path) -> Checkpoint:
    """Write the model, with the same random weights each time."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    noise = torch.Generator().manual_seed(1)
    tensors = {
        name: torch.randn(shape, generator=noise) * 0.15 + ("norm" in name)
        for name, shape in tensors_of(read_config(HfConfig.read(folder))).items()
    }
    save_file(tensors, folder / "model.safetensors")
    return open_folder(folder)


def create_kernels(backend: str) -> Kernels:
    return ReferenceKernels() if backend == "reference" else octavo_kernels.for_device("cpu", num_threads=2)


def create_runner(checkpoint: Checkpoint, kernels: Kernels, dtype: torch.dtype) -> ModelRunner:
    """Return a runner whose cache is full of numbers that no kernel may read."""
    runner = ModelRunner(
        load_model(checkpoint, kernels, dtype, MAX_MODEL_LEN),
        kernels,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        num_rows=NUM_ROWS,
        max_model_len=MAX_MODEL_LEN,
        eos_token_ids=frozenset({EOS}),
        max_logits_bytes=2**26,
    )
    runner.kv_cache.uniform_(-50, 50)
    return runner


def run(runner: ModelRunner, requests: Sequence[Request]) -> Answers:
    """Run all requests together, each prompt in one step, with an empty cache."""
    engine = _engine(runner, num_blocks=CORE_BLOCKS, enable_prefix_caching=False)
    answers: Answers = {}
    for number, request in enumerate(requests):
        _add(engine, number, request)
    while engine.has_unfinished_requests:
        _step(engine, answers)
    return answers


def run_disturbed(
    runner: ModelRunner, requests: Sequence[Request], *, seed: int, steps_in_flight: int
) -> tuple[Answers, CoreLoad]:
    """Run requests that arrive at random, in chunks of random length, with preemptions and too few blocks.

    Returns the load at the end, too. ``seed`` decides all of it.
    """
    print("seed", seed)
    rng = random.Random(seed)
    engine = _engine(runner, num_blocks=FEW_BLOCKS, enable_prefix_caching=True, steps_in_flight=steps_in_flight)
    _shuffle_free_blocks(engine, rng)
    waiting = list(enumerate(requests))
    answers: Answers = {}
    while waiting or engine.has_unfinished_requests:
        while waiting and rng.random() < 0.3:
            _add(engine, *waiting.pop(rng.randrange(len(waiting))))
        engine.core.reconfigure(EngineSettings(long_prefill_token_threshold=rng.randint(1, 40)))
        for victim in running_sequences(engine.core)[1:]:
            if rng.random() < 0.1:
                preempt(engine.core, victim)
        if engine.has_unfinished_requests:
            _step(engine, answers)
    return answers, engine.core.load()


def _engine(runner: ModelRunner, **changes: object) -> LLMEngine:
    config = create_config(
        block_size=BLOCK_SIZE,
        max_num_seqs=NUM_ROWS,
        max_num_batched_tokens=NUM_ROWS * MAX_MODEL_LEN,
        max_model_len=MAX_MODEL_LEN,
        eos_token_ids=frozenset(),
        **changes,
    )
    return LLMEngine(config, runner)


def _add(engine: LLMEngine, number: int, request: Request) -> None:
    prompt, sampling = request
    engine.add_request(NewRequest(number, tuple(prompt), None, sampling))


def _step(engine: LLMEngine, answers: Answers) -> None:
    for item in engine.step():
        assert item.error is None, item.error
        answer = answers.setdefault((item.request_id, item.choice), Answer())
        answer.output += item.token_ids
        answer.logprobs += item.logprobs
    engine.core.check_integrity()


def _shuffle_free_blocks(engine: LLMEngine, rng: random.Random) -> None:
    """Let the block tables of sequences have no order."""
    free = engine.core._kv.pool.free
    blocks = list(free)
    rng.shuffle(blocks)
    for block in blocks:
        free.remove(block)
        free.push_back(block)
