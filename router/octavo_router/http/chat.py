"""POST /v1/chat/completions: calls from its body, choices in its format."""

import json
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring as quote
from typing import Any

from octavo_router.answers.call import Call, ChatPrompt
from octavo_router.answers.choice_reader import Delta
from octavo_router.answers.collected_choice import CollectedChoice
from octavo_router.answers.generation import Generation
from octavo_router.http.logprobs import chat_logprobs
from octavo_router.http.protocol import ChatBody
from octavo_router.http.wire import Envelope
from octavo_text import ModelText

ID_PREFIX = "chatcmpl-"


def chat_calls(body: ChatBody, defaults: Mapping[str, Any], id: str, tenant: str) -> list[Call]:
    """Return the one call of a chat. Raise ``InvalidRequest``."""
    prompt = ChatPrompt(
        [message.for_template() for message in body.messages], body.add_generation_prompt, body.chat_template_kwargs
    )
    return [
        Call(
            request_id=id,
            prompt=prompt,
            sampling=body.sampling(defaults),
            stop=body.stops,
            include_stop_str_in_output=body.include_stop_str_in_output,
            skip_special_tokens=body.skip_special_tokens,
            priority=body.priority,
            cache_salt=body.cache_salt,
            tenant=tenant,
            buffered=not body.stream,
        )
    ]


class ChatWire:
    """Choices of a chat: a message, or the deltas that add up to one.

    The role comes with the first delta's text, so that no event has empty content.
    """

    def __init__(self, body: ChatBody, id: str, model: str, text: ModelText) -> None:
        self.envelope = Envelope(
            id=id,
            kind="chat.completion",
            chunk_kind="chat.completion.chunk",
            model=model,
            include_usage=body.include_usage,
        )
        self._logprobs = body.logprobs
        self._token_ids = body.return_token_ids
        self._plain = not (body.logprobs or body.return_token_ids)
        self._text = text
        self._started: set[int] = set()
        self._tail = f'}},"logprobs":null,"finish_reason":null{self.envelope.tail}'

    def event(self, generation: Generation, delta: Delta) -> str:
        if self._plain and delta.finish_reason is None and delta.choice in self._started:
            return f'{self.envelope.head}{delta.choice},"delta":{{"content":{quote(delta.text)}{self._tail}'
        content: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        if delta.choice not in self._started:
            self._started.add(delta.choice)
            content["role"] = "assistant"
            if self._token_ids:
                extra["prompt_token_ids"] = generation.prompt_token_ids
        if delta.text:
            content["content"] = delta.text
        fields: dict[str, Any] = {
            "delta": content,
            "logprobs": self._logprobs_of(delta.logprobs),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            fields["stop_reason"] = delta.stop_reason
        if self._token_ids:
            fields["token_ids"] = delta.token_ids
        inner = json.dumps(fields | extra, ensure_ascii=False, separators=(",", ":"))
        return f"{self.envelope.head}{delta.choice},{inner[1:-1]}{self.envelope.tail}"

    def choice(self, generation: Generation, index: int, collected: CollectedChoice) -> dict[str, Any]:
        choice = {
            "index": index,
            "message": {"role": "assistant", "content": collected.text, "refusal": None},
            "logprobs": self._logprobs_of(collected.logprobs),
            "finish_reason": collected.finish_reason,
            "stop_reason": collected.stop_reason,
        }
        return choice | ({"token_ids": collected.token_ids} if self._token_ids else {})

    def body_fields(self, generations: Sequence[Generation]) -> dict[str, Any]:
        return {"prompt_token_ids": generations[0].prompt_token_ids} if self._token_ids else {}

    def _logprobs_of(self, positions: Sequence[Any]) -> dict[str, Any] | None:
        return chat_logprobs(self._text, positions) if self._logprobs else None
