"""Prints a digest of the embedded model's arithmetic and its greedy answer, as JSON, in one instruction set.

    OCTAVO_CPU_ISA=avx2 python tests/engine/greedy_answer.py float32

The digest is of the log probabilities of a prompt and of sampled tokens, bit for bit.
"""

import asyncio
import hashlib
import json
import struct
import sys

from octavo_api.model_source import locate
from octavo_api.sampling import SamplingParams
from octavo_api.settings import EngineSettings
from octavo_engine.core.engine_core import EngineCore
from octavo_engine.core.request import NewRequest
from octavo_engine.startup.loading import LoadedEngine, load_engine
from octavo_text import ModelText

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
URI = "embedded://smollm2"


def run(engine: LoadedEngine, prompt: tuple[int, ...], sampling: SamplingParams) -> tuple[list[int], list[float]]:
    """Returns the tokens of one request, and the log probabilities of its prompt and of them."""
    core = EngineCore(engine.core_config)
    core.add_request(NewRequest("one", prompt, None, sampling), 0.0)
    tokens: list[int] = []
    logprobs: list[float] = []
    while core.has_unfinished:
        plan = core.schedule(0.0)
        assert plan is not None
        core.commit(engine.runner.execute(plan), 0.0)
        for output in core.take_outputs():
            assert output.error is None
            tokens += output.token_ids
            logprobs += [entry.logprob for entry in (*output.prompt_logprobs, *output.logprobs)]
    return tokens, logprobs


def main() -> None:
    settings = EngineSettings.read({"dtype": sys.argv[1], "kv_cache_memory_bytes": 2**26}, where="engine")
    engine = load_engine(URI, None, settings)
    text = ModelText.load(locate(URI, None))
    prompt = tuple(asyncio.run(text.encode_chat(QUESTION)))
    greedy, first = run(engine, prompt, SamplingParams(temperature=0, max_tokens=24, logprobs=0, prompt_logprobs=0))
    drawn, second = run(engine, prompt, SamplingParams(temperature=1, seed=5, top_p=0.95, max_tokens=24, logprobs=0))
    digest = hashlib.blake2b(struct.pack(f"<{len(first + second)}f", *first, *second), digest_size=8)
    print(json.dumps({"text": text.decode(greedy), "greedy": greedy, "drawn": drawn, "digest": digest.hexdigest()}))


if __name__ == "__main__":
    main()
