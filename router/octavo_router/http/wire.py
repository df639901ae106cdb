"""OpenAI's answers as objects and as events: the common parts of chat and plain completions.

An event is a constant head and tail with the escaped text between them. So no token builds an object.
"""

import json
import time
from collections.abc import Sequence
from json.encoder import encode_basestring as quote
from typing import Any, Protocol

from octavo_router.answers.choice_reader import Delta
from octavo_router.answers.collected_choice import CollectedChoice
from octavo_router.answers.generation import Generation
from octavo_router.http.reply import Header, header

DONE = "data: [DONE]\n\n"


class Wire(Protocol):
    """Format of one endpoint's choices."""

    envelope: "Envelope"

    def event(self, generation: Generation, delta: Delta) -> str:
        """Return the event that carries ``delta``."""

    def choice(self, generation: Generation, index: int, collected: CollectedChoice) -> dict[str, Any]:
        """Return the element of ``choices`` of an answer in one piece."""

    def body_fields(self, generations: Sequence[Generation]) -> dict[str, Any]:
        """Return the fields of an answer in one piece in addition to its choices."""


class Envelope:
    """The fields around the choices: ``id``, ``object``, ``created``, ``model``, ``usage``."""

    def __init__(
        self, *, id: str, kind: str, chunk_kind: str, model: str, include_usage: bool, count_completion: bool = True
    ) -> None:
        """Create the envelope. Without ``count_completion`` the usage counts no completion tokens."""
        self.id = id
        self._count_completion = count_completion
        self._created = int(time.time())
        self._kind = kind
        self._model = model
        self.include_usage = include_usage
        names = f'"id":{quote(id)},"object":"{chunk_kind}","created":{self._created},"model":{quote(model)}'
        self._before = f'data: {{{names},"choices":['
        self.head = self._before + '{"index":'
        self.tail = '}],"usage":null}\n\n' if include_usage else "}]}\n\n"

    def last_event(self, generations: Sequence[Generation], explain: bool) -> str:
        """Return the event without choices: usage and route, if requested."""
        fields = {}
        if self.include_usage:
            fields["usage"] = self._usage(generations)
        if explain:
            fields["octavo"] = explanation(generations)
        if not fields:
            return ""
        return f"{self._before}],{json.dumps(fields, ensure_ascii=False, separators=(',', ':'))[1:]}\n\n"

    def body(self, choices: list[dict[str, Any]], generations: Sequence[Generation], explain: bool) -> dict[str, Any]:
        body = {
            "id": self.id,
            "object": self._kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "usage": self._usage(generations),
        }
        return body | ({"octavo": explanation(generations)} if explain else {})

    def _usage(self, generations: Sequence[Generation]) -> dict[str, Any]:
        prompt = sum(len(generation.prompt_token_ids) for generation in generations)
        completion = sum(generation.completion_tokens for generation in generations) if self._count_completion else 0
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {
                "cached_tokens": sum(generation.cached_tokens or 0 for generation in generations)
            },
        }


def explanation(generations: Sequence[Generation]) -> Any:
    """Return the reasons for the choice of a replica: one object, or a list with one for each of several prompts."""
    routes = [_route(generation) for generation in generations]
    return routes[0] if len(routes) == 1 else routes


def _route(generation: Generation) -> dict[str, Any]:
    route = generation.route
    if route is None:
        return {}
    return {
        "replica": route.replica,
        "policy": route.policy,
        "reason": route.reason,
        "predicted_cached_tokens": route.predicted_cached_tokens,
        "cached_tokens": generation.cached_tokens or 0,
        "cost_s": route.cost_s,
    }


def route_headers(generation: Generation) -> list[Header]:
    """Return the decision as headers. They leave before the engine has reported its cached tokens."""
    route = generation.route
    if route is None:
        return []
    return [
        header("x-octavo-replica", route.replica),
        header("x-octavo-route-policy", route.policy),
        header("x-octavo-route-reason", route.reason),
        header("x-octavo-predicted-cached-tokens", route.predicted_cached_tokens),
        header("x-octavo-cost-seconds", f"{route.cost_s:.6f}"),
    ]
