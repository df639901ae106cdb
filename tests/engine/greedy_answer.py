"""Prints a digest of the embedded model's arithmetic and its greedy answer, as JSON, in one instruction set.

    OCTAVO_CPU_ISA=avx2 python tests/engine/greedy_answer.py float32

The digest is of the log probabilities of a prompt and of sampled tokens, bit for bit.
"""

import asyncio
import hashlib
import json
import struct
import sys

from octavo_api.sampling import SamplingParams
from octavo_api.startup.model_source import locate
from octavo_engine import LLM
from octavo_text import ModelText

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
URI = "embedded://smollm2"


def main() -> None:
    llm = LLM(URI, dtype=sys.argv[1], kv_cache_memory_bytes=2**26)
    prompt = asyncio.run(ModelText.load(locate(URI)).encode_chat(QUESTION))
    samplings = [
        SamplingParams(temperature=0, max_tokens=24, logprobs=0, prompt_logprobs=0),
        SamplingParams(temperature=1, seed=5, top_p=0.95, max_tokens=24, logprobs=0),
    ]
    results = [llm.generate([prompt], sampling)[0] for sampling in samplings]
    entries = [entry for result in results for entry in (*result.prompt_logprobs, *result.outputs[0].logprobs)]
    digest = hashlib.blake2b(struct.pack(f"<{len(entries)}f", *(entry.logprob for entry in entries)), digest_size=8)
    greedy, drawn = (result.outputs[0] for result in results)
    found = {"text": greedy.text, "greedy": greedy.token_ids, "drawn": drawn.token_ids, "digest": digest.hexdigest()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
