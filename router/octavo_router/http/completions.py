"""POST /v1/completions: calls from its body, choices in its format."""

import json
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring as quote
from typing import Any

from octavo_router.answers.call import Call, TextPrompt, TokenPrompt
from octavo_router.answers.choice_reader import Delta
from octavo_router.answers.collected_choice import CollectedChoice
from octavo_router.answers.generation import Generation
from octavo_router.http.logprobs import CompletionLogprobs, join_logprobs
from octavo_router.http.protocol import CompletionBody
from octavo_router.http.wire import Envelope
from octavo_text import ModelText

ID_PREFIX = "cmpl-"


def completion_calls(body: CompletionBody, defaults: Mapping[str, Any], id: str, tenant: str) -> list[Call]:
    """Return one call for each prompt. Raise ``InvalidRequest``."""
    prompts = body.prompts
    sampling = body.sampling(defaults)
    return [
        Call(
            request_id=id if len(prompts) == 1 else f"{id}-{number}",
            prompt=TextPrompt(prompt, body.add_special_tokens) if isinstance(prompt, str) else TokenPrompt(prompt),
            sampling=sampling,
            stop=body.stops,
            include_stop_str_in_output=body.include_stop_str_in_output,
            skip_special_tokens=body.skip_special_tokens,
            priority=body.priority,
            cache_salt=body.cache_salt,
            tenant=tenant,
            buffered=not body.stream,
            index=number,
        )
        for number, prompt in enumerate(prompts)
    ]


class CompletionWire:
    """Choices of plain completions: the first prompt's choices, then the second's."""

    def __init__(self, body: CompletionBody, id: str, model: str, text: ModelText) -> None:
        self.envelope = Envelope(
            id=id,
            kind="text_completion",
            chunk_kind="text_completion",
            model=model,
            include_usage=body.include_usage,
            count_completion=not body.only_echo,
        )
        self._body = body
        self._plain = body.logprobs is None and not body.return_token_ids
        self._text = text
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._started: set[int] = set()
        self._tail = f',"logprobs":null,"finish_reason":null{self.envelope.tail}'

    def event(self, generation: Generation, delta: Delta) -> str:
        index = generation.call.index * generation.call.sampling.n + delta.choice
        if self._plain and delta.finish_reason is None and index in self._started:
            return f'{self.envelope.head}{index},"text":{quote(delta.text)}{self._tail}'
        fields = self._fields(generation, index, delta, first=index not in self._started)
        self._started.add(index)
        if delta.finish_reason is None:
            del fields["stop_reason"]
        inner = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        return f"{self.envelope.head}{index},{inner[1:-1]}{self.envelope.tail}"

    def choice(self, generation: Generation, index: int, collected: CollectedChoice) -> dict[str, Any]:
        place = generation.call.index * generation.call.sampling.n + index
        return {"index": place, **self._fields(generation, place, collected, first=True)}

    def body_fields(self, generations: Sequence[Generation]) -> dict[str, Any]:
        return {}

    def _fields(
        self, generation: Generation, index: int, output: Delta | CollectedChoice, *, first: bool
    ) -> dict[str, Any]:
        echo = first and self._body.echo
        text, token_ids, positions = output.text, output.token_ids, output.logprobs
        if self._body.only_echo:
            text, token_ids, positions = "", [], []
        fields: dict[str, Any] = {
            "text": self._prompt_text(generation) + text if echo else text,
            "logprobs": None,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }
        if self._body.logprobs is not None:
            fields["logprobs"] = self._logprobs_of(generation, index, positions, echo)
        if self._body.return_token_ids:
            fields["token_ids"] = token_ids
            if first:
                fields["prompt_token_ids"] = generation.prompt_token_ids
        return fields

    def _prompt_text(self, generation: Generation) -> str:
        prompt = generation.call.prompt
        if isinstance(prompt, TextPrompt):
            return prompt.text
        return self._text.decode(generation.prompt_token_ids, skip_special_tokens=generation.call.skip_special_tokens)

    def _logprobs_of(self, generation: Generation, index: int, positions: Sequence[Any], echo: bool) -> dict[str, Any]:
        writer = self._logprobs.setdefault(index, CompletionLogprobs(self._text))
        if not echo:
            return writer.add(positions)
        prompt = writer.add_prompt(generation.prompt_token_ids, generation.prompt_logprobs)
        return join_logprobs(prompt, writer.add(positions))
