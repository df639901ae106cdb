"""A tiny random Llama, runners over it, and a player that makes plans the way a scheduler would."""

import json
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
import torch
from safetensors.torch import save_file

import octavo_kernels
from octavo_api.sampling import SamplingParams
from octavo_engine.core.plan import BlockCopy, Logprobs, RowJoin, RowWork, StepPlan
from octavo_engine.models.registry import config_from_hf, load_model, open_folder, tensors_of
from octavo_engine.runner.model_runner import ModelRunner
from octavo_engine.weights.hf_config import HfConfig
from octavo_engine.weights.safetensors_checkpoint import SafetensorsCheckpoint
from octavo_kernels.reference import ReferenceKernels

VOCABULARY = 512
EOS = 3
MAX_MODEL_LEN = 96
BLOCK_SIZE = 8
NUM_ROWS = 12
NUM_BLOCKS = 2000
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


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> SafetensorsCheckpoint:
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    noise = torch.Generator().manual_seed(1)
    tensors = {
        name: torch.randn(shape, generator=noise) * 0.15 + ("norm" in name)
        for name, shape in tensors_of(config_from_hf(HfConfig.read(folder))).items()
    }
    save_file(tensors, folder / "model.safetensors")
    return open_folder(folder)


@pytest.fixture(scope="session")
def make_kernels() -> Callable:
    def make(backend: str):
        if backend == "reference":
            return ReferenceKernels()
        return octavo_kernels.for_device("cpu", num_threads=2)

    return make


@pytest.fixture(scope="session")
def make_runner(checkpoint, make_kernels) -> Callable:
    """``make(backend, dtype)``: its cache starts full of numbers that nobody should read."""

    def make(backend: str = "reference", dtype: torch.dtype = torch.float32, kernels=None) -> ModelRunner:
        kernels = kernels or make_kernels(backend)
        runner = ModelRunner(
            load_model(checkpoint, kernels, dtype, MAX_MODEL_LEN),
            kernels,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            num_rows=NUM_ROWS,
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=frozenset({EOS}),
        )
        runner.kv_cache.uniform_(-50, 50)
        return runner

    return make


@dataclass
class Sequence:
    """One choice of a request. ``planned`` counts tokens known or being sampled by a plan that was made."""

    request: int
    prompt_len: int
    sampling: SamplingParams
    choice: int
    tokens: list[int]
    planned: int
    computed: int = 0
    row: int | None = None
    blocks: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_logprobs: dict[int, Logprobs] = field(default_factory=dict)
    forked: bool = False

    @property
    def end(self) -> int:
        return self.prompt_len + (self.sampling.max_tokens or 1)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_len :]


class Player:
    """Plays requests to their ``max_tokens`` through a runner under decisions drawn from ``chance``.

    ``chance(what, low, high)`` is asked how many sequences run, how long chunks are, who is preempted. With ``depth``
    2 a plan is made before the plan ahead of it is executed.
    """

    def __init__(self, runner: ModelRunner, chance: Callable[[str, int, int], int], depth: int = 1) -> None:
        self._runner = runner
        self._chance = chance
        self._depth = depth
        self._free_blocks = list(range(NUM_BLOCKS))
        self._free_rows = list(range(NUM_ROWS))
        self._in_flight: deque = deque()
        self._step = 0
        self.sequences: list[Sequence] = []
        self.failed: dict[tuple[int, int], str] = {}
        self._leaves: list[int] = []

    def play(self, requests: Iterable[tuple[list[int], SamplingParams]]) -> dict[tuple[int, int], Sequence]:
        for number, (prompt, sampling) in enumerate(requests):
            self.sequences.append(Sequence(number, len(prompt), sampling, 0, list(prompt), len(prompt)))
        while (made := self._make_plan()) or self._in_flight:
            if not made or len(self._in_flight) >= self._depth:
                self._execute()
        assert len(self._free_rows) + len(self._leaves) == NUM_ROWS
        return {(item.request, item.choice): item for item in self.sequences}

    def _unplanned(self) -> list[Sequence]:
        return [s for s in self.sequences if s.computed < s.planned and s.computed < s.end - 1 and not self._gone(s)]

    def _gone(self, sequence: Sequence) -> bool:
        return (sequence.request, sequence.choice) in self.failed

    def _make_plan(self) -> bool:
        joins, copies, work, expected = [], [], [], []
        self._preempt()
        leaves, self._leaves = self._leaves, []
        self._free_rows += leaves
        ready = self._unplanned()
        limit = self._chance("sequences", 1, max(1, len(ready)))
        while len(work) < limit and ready:
            sequence = ready.pop(self._chance("who", 0, len(ready) - 1))
            if sequence.row is None:
                if not self._free_rows or len(sequence.tokens) < sequence.planned:
                    continue
                joins.append(self._join(sequence, copies))
            work.append(self._work(sequence))
            expected.append(sequence)
        if not work:
            self._leaves = leaves
            self._free_rows = [row for row in self._free_rows if row not in leaves]
            return False
        plan = StepPlan(self._step, tuple(leaves), tuple(copies), tuple(joins), tuple(work))
        self._step += 1
        self._in_flight.append((plan, expected))
        for sequence in expected:
            if sequence.computed >= sequence.end - 1:
                self._leave(sequence)
        return True

    def _preempt(self) -> None:
        for sequence in self.sequences:
            settled = sequence.row is not None and len(sequence.tokens) == sequence.planned and not sequence.forked
            if settled and sequence.computed and self._chance("preempt", 0, 9) == 9:
                self._leave(sequence)
                sequence.computed, sequence.blocks = 0, []

    def _leave(self, sequence: Sequence) -> None:
        self._leaves.append(sequence.row)
        sequence.row = None

    def _join(self, sequence: Sequence, copies: list[BlockCopy]) -> RowJoin:
        sequence.row = self._free_rows.pop(self._chance("row", 0, len(self._free_rows) - 1))
        if sequence.computed % BLOCK_SIZE:
            source, target = sequence.blocks[-1], self._take_blocks(1)[0]
            copies.append(BlockCopy(source, target))
            sequence.blocks[-1] = target
        return RowJoin(
            sequence.row,
            tuple(sequence.tokens),
            sequence.prompt_len,
            tuple(sequence.blocks),
            sequence.sampling,
            sequence.choice,
        )

    def _take_blocks(self, count: int) -> list[int]:
        return [self._free_blocks.pop(self._chance("block", 0, len(self._free_blocks) - 1)) for _ in range(count)]

    def _work(self, sequence: Sequence) -> RowWork:
        start = sequence.computed
        count = self._chance("chunk", 1, sequence.planned - start)
        fresh = self._take_blocks(-(-(start + count) // BLOCK_SIZE) - len(sequence.blocks))
        sequence.blocks += fresh
        sequence.computed += count
        choices: tuple[int, ...] = ()
        if sequence.computed == sequence.planned:
            choices = (sequence.choice,)
            if sequence.planned == sequence.prompt_len and sequence.sampling.n > 1 and sequence.choice == 0:
                choices = tuple(range(sequence.sampling.n))
                sequence.forked = True
            sequence.planned += 1
        asks = sequence.sampling.prompt_logprobs is not None and start < sequence.prompt_len
        return RowWork(sequence.row, start, count, tuple(fresh), choices, asks)

    def _execute(self) -> None:
        plan, expected = self._in_flight.popleft()
        output = self._runner.execute(plan)
        assert output.step_id == plan.step_id
        owners = {item.row: sequence for item, sequence in zip(plan.work, expected, strict=True)}
        for row, reason in output.failed.items():
            self.failed[owners[row].request, owners[row].choice] = reason
        for row, entries in output.prompt_logprobs.items():
            (item,) = (item for item in plan.work if item.row == row)
            for position, entry in enumerate(entries, item.start + 1):
                owners[row].prompt_logprobs[position] = entry
        for entry in output.sampled:
            parent = owners[entry.row]
            if entry.choice == parent.choice:
                parent.tokens.append(entry.token_id)
                parent.logprobs += [entry.logprobs] if entry.logprobs else []
            else:
                self.sequences.append(self._fork(parent, entry))

    def _fork(self, parent: Sequence, entry) -> Sequence:
        return Sequence(
            parent.request,
            parent.prompt_len,
            parent.sampling,
            entry.choice,
            [*parent.tokens[: parent.prompt_len], entry.token_id],
            parent.prompt_len + 1,
            computed=parent.prompt_len,
            blocks=parent.blocks[: -(-parent.prompt_len // BLOCK_SIZE)],
            logprobs=[entry.logprobs] if entry.logprobs else [],
            forked=True,
        )


@pytest.fixture
def play() -> Callable:
    """``play(runner, requests, seed=None, depth=1)``: all at random, or (None) all together in whole chunks."""

    def run(runner, requests, seed: int | None = None, depth: int = 1, player: list | None = None):
        draw = random.Random(seed)

        def chance(what: str, low: int, high: int) -> int:
            if seed is not None:
                return draw.randint(low, high)
            return high if what in ("sequences", "chunk") else low

        playing = Player(runner, chance, depth)
        result = playing.play(requests)
        if player is not None:
            player.append(playing)
        return result

    return run
