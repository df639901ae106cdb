"""Offline inference: one model in this process, without a gateway or a service."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from octavo_api.errors import InvalidRequest
from octavo_api.finish_reason import FinishReason
from octavo_api.sampling import SamplingParams
from octavo_api.settings import EngineSettings
from octavo_api.startup.model_source import locate, normalize_uri
from octavo_engine.core.plan import Logprobs
from octavo_engine.core.request import NewRequest, RequestOutput
from octavo_engine.llm_engine import LLMEngine
from octavo_engine.startup.loading import load_engine
from octavo_text import ModelText

_QUEUE = 2**20  # all prompts of a call may wait at once

Prompt = str | Sequence[int]
"""Text, or token ids."""


@dataclass(slots=True)
class CompletionOutput:
    """One choice of a request. ``logprobs`` has an entry for each token if the sampling asks for them."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None


@dataclass(slots=True)
class GenerateOutput:
    """The result of one prompt, with a choice for each of ``sampling.n``.

    ``prompt_logprobs`` has an entry for each prompt token except the first, if the sampling asks for them.
    """

    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    cached_tokens: int = 0


class LLM:
    """One model with its tokenizer. Prefixes stay cached between calls. Not safe to call from two threads.

    ``model`` is a path or an address as in ``spec.model.uri``. ``settings`` are those of ``engine`` by their names,
    for instance ``LLM("embedded://smollm2", dtype="float32", max_model_len=512)``. ``report`` receives the progress of
    loading, line by line. Raises subclasses of ``StartupError``.
    """

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        report: Callable[[str], None] = lambda _: None,
        **settings: Any,
    ) -> None:
        uri = normalize_uri(model)
        read = EngineSettings.read({"max_num_queued_reqs": _QUEUE, **settings}, where="LLM")
        self._loaded = load_engine(uri, revision, read, report=report)
        self._text = ModelText.load(locate(uri, revision))
        self.llm_engine = self.create_engine()

    @property
    def vocab_size(self) -> int:
        return self._loaded.vocab_size

    def create_engine(self, **changes: Any) -> LLMEngine:
        """Return an engine of its own over this model, with ``changes`` to its ``CoreConfig``."""
        return LLMEngine(replace(self._loaded.core_config, **changes), self._loaded.runner)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes."""
        self.llm_engine.core.reset_prefix_cache()

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[GenerateOutput]:
        """Compute all prompts together and return one result for each, in their order.

        ``sampling`` is one for all prompts, or one for each. Raises the ``RequestError`` of the first prompt that
        cannot run, before any is computed, and ``EngineFailure`` if the model's numbers fail.
        """
        params = list(sampling) if isinstance(sampling, Sequence) else [sampling or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise InvalidRequest.field(
                "sampling", f"{len(params)} entries", f"one, or {len(prompts)}: one for each prompt"
            )
        results = [
            GenerateOutput(self._token_ids(prompt), [CompletionOutput(index) for index in range(params.n)])
            for prompt, params in zip(prompts, params, strict=True)
        ]
        try:
            for index, (result, one) in enumerate(zip(results, params, strict=True)):
                self.llm_engine.add_request(NewRequest(index, result.prompt_token_ids, None, one))
            while self.llm_engine.has_unfinished_requests:
                for item in self.llm_engine.step():
                    assert isinstance(item.request_id, int)
                    _add(results[item.request_id], item)
        except BaseException:
            # A plan may be in flight: no request of this call may stay in the core.
            self.llm_engine = self.create_engine()
            raise
        for result in results:
            for output in result.outputs:
                output.text = self._text.decode(output.token_ids)
        return results

    def _token_ids(self, prompt: Prompt) -> list[int]:
        return self._text.encode_now(prompt) if isinstance(prompt, str) else list(prompt)


def _add(result: GenerateOutput, item: RequestOutput) -> None:
    if item.error is not None:
        raise item.error
    output = result.outputs[item.choice]
    output.token_ids += item.token_ids
    output.logprobs += item.logprobs
    output.finish_reason, output.stop_token_id = item.finish_reason, item.stop_token_id
    result.prompt_logprobs += item.prompt_logprobs
    result.cached_tokens += item.cached_tokens or 0
