"""Conversion between messages of ``octavo.v1`` and the words that both front ends share."""

from collections.abc import Mapping
from typing import Any

from octavo_api.errors import InvalidRequest
from octavo_api.sampling import SamplingParams
from octavo_api.v1 import inference_pb2
from octavo_router.answers.call import Call, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from octavo_router.answers.choice_reader import Delta
from octavo_router.answers.collected_choice import CollectedChoice
from octavo_router.answers.generation import Generation

ROLES = ("system", "developer", "user", "assistant")


def call_of(
    request: inference_pb2.GenerateRequest,
    defaults: Mapping[str, Any],
    *,
    request_id: str,
    tenant: str,
    timeout_s: float | None,
    buffered: bool,
) -> Call:
    """Return the call of a request. Raise ``InvalidRequest``."""
    return Call(
        request_id=request_id,
        prompt=_prompt(request),
        sampling=SamplingParams.from_proto(request.sampling, defaults),
        stop=tuple(request.stop),
        include_stop_str_in_output=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens if request.HasField("skip_special_tokens") else True,
        priority=request.priority,
        cache_salt=request.cache_salt,
        tenant=tenant,
        timeout_s=timeout_s,
        buffered=buffered,
    )


def _prompt(request: inference_pb2.GenerateRequest) -> Prompt:
    kind = request.WhichOneof("prompt")
    if kind == "text":
        return TextPrompt(request.text)
    if kind == "tokens":
        return TokenPrompt(list(request.tokens.ids))
    if kind is None:
        raise InvalidRequest("prompt: required, not given; allowed: text, tokens or chat", param="prompt")
    chat = request.chat
    if not chat.messages:
        raise InvalidRequest.field("chat.messages", [], "at least one message")
    messages = []
    for number, message in enumerate(chat.messages):
        if message.role not in ROLES:
            raise InvalidRequest.field(f"chat.messages[{number}].role", message.role, ", ".join(ROLES))
        role = "system" if message.role == "developer" else message.role
        messages.append({"role": role, "content": message.content})
    return ChatPrompt(messages, chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True)


def choice_message(index: int, output: Delta | CollectedChoice) -> inference_pb2.Choice:
    message = inference_pb2.Choice(index=index, text=output.text, token_ids=output.token_ids, logprobs=output.logprobs)
    if output.finish_reason is not None:
        message.finish_reason = output.finish_reason.to_proto()
    if isinstance(output.stop_reason, str):
        message.stop_string = output.stop_reason
    elif output.stop_reason is not None:
        message.stop_token_id = output.stop_reason
    return message


def usage_message(generation: Generation) -> inference_pb2.Usage:
    return inference_pb2.Usage(
        prompt_tokens=len(generation.prompt_token_ids),
        completion_tokens=generation.completion_tokens,
        cached_tokens=generation.cached_tokens or 0,
    )


def route_message(generation: Generation) -> inference_pb2.Route | None:
    route = generation.route
    if route is None:
        return None
    return inference_pb2.Route(
        replica=route.replica,
        policy=route.policy,
        reason=route.reason,
        predicted_cached_tokens=route.predicted_cached_tokens,
        cached_tokens=generation.cached_tokens or 0,
        cost_s=route.cost_s,
    )
