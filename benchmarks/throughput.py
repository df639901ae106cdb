"""Output tokens per second at four shapes of load: the engine alone, through the gateway, and transformers beside.

All three run the embedded model with the same dequantised weights, greedy, on the same prompts; prefill is part of the
time. Each figure is the best of --repeat runs. The engine runs in the type it takes by default, transformers in each of
--peer-dtypes, and the ratio is to the faster of them.

python benchmarks/throughput.py [--dtype auto] [--peer-dtypes float32 bfloat16] [--shapes 16x128+128 8x2048+64]
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import client
import drive
import processes

from octavo_api.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Shape:
    """``count`` requests at once, each of ``prompt_len`` and ``output_len`` tokens."""

    count: int
    prompt_len: int
    output_len: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        count, _, lengths = text.partition("x")
        prompt_len, _, output_len = lengths.partition("+")
        return cls(int(count), int(prompt_len), int(output_len))

    def __str__(self) -> str:
        return f"{self.count} × ({self.prompt_len} + {self.output_len})"

    def prompts(self, attempt: int, vocab_size: int) -> list[list[int]]:
        rng = random.Random(f"{attempt}/{self}")
        return [drive.prompt(self.prompt_len, rng, vocab_size) for _ in range(self.count)]

    def rate(self, seconds: float) -> float:
        return self.count * self.output_len / seconds


SHAPES = [Shape(1, 128, 128), Shape(16, 128, 128), Shape(64, 256, 128), Shape(8, 2048, 64)]
VOCAB_SIZE = 49152


def engine_alone(dtype: str, shapes: Sequence[Shape], repeat: int) -> dict[Shape, float]:
    llm = drive.load(dtype=dtype, max_num_seqs=64)
    best = dict.fromkeys(shapes, 0.0)
    for attempt in range(repeat):
        for shape in shapes:
            prompts = shape.prompts(attempt, llm.vocab_size)
            llm.reset_prefix_cache()
            start = time.monotonic()
            llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=shape.output_len, ignore_eos=True))
            best[shape] = max(best[shape], shape.rate(time.monotonic() - start))
    return best


def through_gateway(dtype: str, shapes: Sequence[Shape], repeat: int) -> dict[Shape, float]:
    best = dict.fromkeys(shapes, 0.0)

    async def one(url: str, shape: Shape, attempt: int) -> None:
        prompts = shape.prompts(attempt, VOCAB_SIZE)
        async with client.session() as session:
            start = time.monotonic()
            answers = await asyncio.gather(
                *(client.complete(session, url, p, max_tokens=shape.output_len, ignore_eos=True) for p in prompts)
            )
            seconds = time.monotonic() - start
        tokens = sum(answer.usage["completion_tokens"] for answer in answers)
        assert tokens == shape.count * shape.output_len, [answer.error for answer in answers if answer.error]
        best[shape] = max(best[shape], shape.rate(seconds))

    with processes.stack(engine=[f"dtype={dtype}", "max_num_seqs=64"]) as stack:
        for attempt in range(repeat):
            for shape in shapes:
                asyncio.run(one(stack.url, shape, attempt))
    return best


def transformers_generate(dtype: str, shapes: Sequence[Shape], repeat: int) -> dict[Shape, float]:
    import torch

    from octavo_testing.engine.transformers_model import hf_model

    model = hf_model(getattr(torch, dtype))
    best = dict.fromkeys(shapes, 0.0)
    for attempt in range(repeat):
        for shape in shapes:
            ids = torch.tensor(shape.prompts(attempt, VOCAB_SIZE))
            start = time.monotonic()
            with torch.inference_mode():
                out = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    max_new_tokens=shape.output_len,
                    min_new_tokens=shape.output_len,
                    pad_token_id=0,
                )
            seconds = time.monotonic() - start
            assert out.shape[1] == shape.prompt_len + shape.output_len
            best[shape] = max(best[shape], shape.rate(seconds))
    return best


def main() -> None:
    parser = drive.arguments(__doc__ or "")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--peer-dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--shapes", type=Shape.parse, nargs="+", default=SHAPES)
    options = parser.parse_args()
    work = (options.shapes, options.repeat)
    peers = {dtype: transformers_generate(dtype, *work) for dtype in options.peer_dtypes}
    gateway = through_gateway(options.dtype, *work)
    alone = engine_alone(options.dtype, *work)
    for shape in options.shapes:
        drive.report(
            f"output tokens/s, {shape}, {options.dtype}",
            {
                "engine alone": alone[shape],
                "through the gateway": gateway[shape],
                **{f"transformers generate, {dtype}": best[shape] for dtype, best in peers.items()},
                "engine ÷ transformers": alone[shape] / max(best[shape] for best in peers.values()),
                "gateway ÷ engine": gateway[shape] / alone[shape],
            },
        )


if __name__ == "__main__":
    main()
