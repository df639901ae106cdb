"""The ASGI application: keys and request ids for every path. Starlette serves all paths except the generating ones.

It also works below a ``root_path`` (Serve's route prefix).
"""

import logging
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from octavo_api import __version__
from octavo_api.errors import InvalidRequest, MethodNotAllowed, NoReplica, NotFound, RequestError
from octavo_router.answers.call import ChatPrompt, check_token_ids
from octavo_router.answers.gateway import Gateway
from octavo_router.front.headers import bearer, request_id
from octavo_router.front.keys import ApiKeys
from octavo_router.http.body import ClientDisconnected, parse_object, read_body
from octavo_router.http.generate import CLIENT_CLOSED_REQUEST, ENDPOINTS, Generate
from octavo_router.http.protocol import DetokenizeBody, TokenizeBody
from octavo_router.http.reply import Reply, error_headers, header
from octavo_router.metrics import Metrics

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/version"})
"""Paths that need no API key."""


class HttpApp:
    """OpenAI's interface over one gateway."""

    def __init__(self, gateway: Gateway, keys: ApiKeys | None, metrics: Metrics) -> None:
        self._gateway = gateway
        self._keys = keys
        self._metrics = metrics
        self._generate = Generate(gateway)
        self._plain = _plain_app(gateway, metrics.registry)
        self._paths = {route.path for route in self._plain.routes if isinstance(route, Route)} | set(ENDPOINTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._plain(scope, receive, send)
            return
        path = route_path(scope)
        headers = Headers(scope=scope)
        reply = Reply(send)
        try:
            id = request_id(headers.get("x-request-id"))
            reply.headers = self._headers(id)
            tenant = self._authenticate(path, headers)
            endpoint = ENDPOINTS.get(path)
            if endpoint is None:
                await self._plain(scope, receive, _recording(send, reply))
            elif scope["method"] != "POST":
                await reply.error(
                    MethodNotAllowed(f"{path}: got {scope['method']}, allowed: POST"), [header("allow", "POST")]
                )
            else:
                await self._generate(endpoint, headers, receive, reply, id, tenant)
        except ClientDisconnected:
            reply.status = CLIENT_CLOSED_REQUEST
        except RequestError as error:
            await reply.error(error)
        except Exception:
            logger.exception("internal error at %s, request %s", path, id, extra={"request_id": id})
            if reply.status:
                raise
            await reply.error(RequestError("internal error; see the gateway's log"))
        finally:
            self._metrics.http_request(path if path in self._paths else "other", reply.status)

    def _headers(self, id: str) -> list[tuple[bytes, bytes]]:
        headers = [header("x-request-id", id)]
        if self._gateway.draining:
            headers.append(header("connection", "close"))
        return headers

    def _authenticate(self, path: str, headers: Headers) -> str:
        if self._keys is None or path in OPEN_PATHS:
            return ""
        return self._keys.authenticate(bearer(headers.get("authorization")))


def route_path(scope: Scope) -> str:
    """Return the path without the prefix that the application is mounted at."""
    path: str = scope["path"]
    prefix = scope.get("root_path", "").rstrip("/")
    return path[len(prefix) :] if prefix and path.startswith(prefix + "/") else path


def _recording(send: Send, reply: Reply) -> Send:
    """Return a ``send`` that adds the reply's headers and records the status."""

    async def record(message: Message) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            message = {**message, "headers": [*reply.headers, *message["headers"]]}
        await send(message)

    return record


def _plain_app(gateway: Gateway, registry: CollectorRegistry) -> Starlette:
    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        if gateway.ready:
            return JSONResponse({"status": "ok"})
        reason = "the gateway is shutting down" if gateway.draining else "no engine replica accepts requests"
        raise NoReplica(f"not ready: {reason}")

    async def version(request: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    def model() -> dict[str, Any]:
        return {
            "id": gateway.served_name,
            "object": "model",
            "created": gateway.created,
            "owned_by": "octavo",
            "root": gateway.served_name,
            "parent": None,
            "max_model_len": gateway.max_model_len,
        }

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model()]})

    async def one_model(request: Request) -> Response:
        gateway.check_model(request.path_params["id"])
        return JSONResponse(model())

    async def read_object(request: Request) -> dict[str, Any]:
        async with gateway.time_limit():
            raw = await read_body(request.receive, request.headers, gateway.settings.max_body_bytes)
        return parse_object(raw)

    async def tokenize(request: Request) -> Response:
        body = TokenizeBody.parse(await read_object(request))
        gateway.check_model(body.model or gateway.served_name)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest(
                "prompt: got both or neither, allowed: exactly one of prompt and messages", param="prompt"
            )
        if body.messages is None:
            ids = await gateway.text.encode(body.prompt or "", add_special_tokens=body.add_special_tokens)
        else:
            messages = [message.for_template() for message in body.messages]
            ids = await gateway.encode(ChatPrompt(messages, body.add_generation_prompt, body.chat_template_kwargs))
        strings = [gateway.text.token_text(token) for token in ids] if body.return_token_strs else None
        answer = {"count": len(ids), "max_model_len": gateway.max_model_len, "tokens": ids, "token_strs": strings}
        return JSONResponse(answer)

    async def detokenize(request: Request) -> Response:
        body = DetokenizeBody.parse(await read_object(request))
        gateway.check_model(body.model or gateway.served_name)
        check_token_ids("tokens", body.tokens, gateway.text.vocab_size)
        return JSONResponse({"prompt": gateway.text.decode(body.tokens, skip_special_tokens=False)})

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/ready", ready),
            Route("/version", version),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/models/{id:path}", one_model),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _http_error, RequestError: _request_error},
    )


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = route_path(request.scope)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        ours: RequestError = MethodNotAllowed(f"{path}: got {request.method}, allowed: {headers.get('Allow')}")
    else:
        ours = NotFound(f"{path}: no such path")
    return JSONResponse(ours.openai(), status_code=error.status_code, headers=headers)


async def _request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return JSONResponse(error.openai(), status_code=error.http_status, headers=headers)
