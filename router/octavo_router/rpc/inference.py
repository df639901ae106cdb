"""``octavo.v1.Inference`` over one gateway: the same checks, errors and streams as HTTP."""

import logging
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from octavo_api.errors import RequestError
from octavo_api.v1 import inference_pb2, inference_pb2_grpc
from octavo_router.answers.call import Call
from octavo_router.answers.collected_choice import CollectedChoice
from octavo_router.answers.gateway import Gateway
from octavo_router.front.headers import bearer, request_id
from octavo_router.front.keys import ApiKeys
from octavo_router.metrics import Metrics
from octavo_router.rpc.convert import call_of, choice_message, route_message, usage_message

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """Inference service over one gateway.

    grpc cancels the handler of a cancelled call. The handler then closes its generation, which aborts it in the
    engine.
    """

    def __init__(self, gateway: Gateway, keys: ApiKeys | None, metrics: Metrics) -> None:
        self._gateway = gateway
        self._keys = keys
        self._metrics = metrics

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> inference_pb2.GenerateResponse:
        async with self._answering("Generate", context):
            call = self._call(request, context, buffered=True)
            choices = [CollectedChoice() for _ in range(call.sampling.n)]
            async with self._gateway.time_limit(), await self._gateway.start_generation(call) as generation:
                async for _, batch in generation:
                    for delta in batch:
                        choices[delta.choice].add(delta)
            return inference_pb2.GenerateResponse(
                id=call.request_id,
                model=self._gateway.served_name,
                created=int(time.time()),
                choices=[choice_message(index, choice) for index, choice in enumerate(choices)],
                usage=usage_message(generation),
                route=route_message(generation) if request.explain else None,
                prompt_logprobs=generation.prompt_logprobs,
            )

    async def GenerateStream(self, request: inference_pb2.GenerateRequest, context: Context) -> None:
        async with self._answering("GenerateStream", context):
            call = self._call(request, context, buffered=False)
            async with self._gateway.time_limit(), await self._gateway.start_generation(call) as generation:
                sent = 0
                async for _, batch in generation:
                    chunk = inference_pb2.GenerateChunk(
                        id=call.request_id,
                        model=self._gateway.served_name,
                        choices=[choice_message(delta.choice, delta) for delta in batch],
                        prompt_logprobs=generation.prompt_logprobs[sent:],
                    )
                    sent = len(generation.prompt_logprobs)
                    await context.write(chunk)
                last = inference_pb2.GenerateChunk(
                    id=call.request_id,
                    model=self._gateway.served_name,
                    usage=usage_message(generation),
                    route=route_message(generation) if request.explain else None,
                )
                await context.write(last)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        async with self._answering("ListModels", context):
            self._tenant(context)
            model = inference_pb2.Model(id=self._gateway.served_name, max_model_len=self._gateway.max_model_len)
            return inference_pb2.ListModelsResponse(models=[model])

    def _call(self, request: inference_pb2.GenerateRequest, context: Context, *, buffered: bool) -> Call:
        tenant = self._tenant(context)
        if request.model:
            self._gateway.check_model(request.model)
        return call_of(
            request,
            self._gateway.text.sampling_defaults,
            request_id="gen-" + request_id(_metadata(context, "x-request-id")),
            tenant=tenant,
            timeout_s=context.time_remaining(),
            buffered=buffered,
        )

    def _tenant(self, context: Context) -> str:
        if self._keys is None:
            return ""
        return self._keys.authenticate(bearer(_metadata(context, "authorization")))

    @asynccontextmanager
    async def _answering(self, method: str, context: Context) -> AsyncIterator[None]:
        """Convert errors into status codes."""
        code = grpc.StatusCode.CANCELLED
        try:
            yield
            code = grpc.StatusCode.OK
        except RequestError as error:
            code = error.grpc_code
            await _abort(context, error)
        except Exception:
            code = grpc.StatusCode.INTERNAL
            logger.exception("internal error in %s", method)
            await _abort(context, RequestError("internal error; see the gateway's log"))
        finally:
            self._metrics.grpc_request(method, code.name)


def _metadata(context: Context, name: str) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == name:
            return value if isinstance(value, str) else value.decode("latin-1")
    return None


async def _abort(context: Context, error: RequestError) -> None:
    trailing = []
    if error.retry_after_s is not None:
        trailing.append(("retry-after", str(max(1, math.ceil(error.retry_after_s)))))
    await context.abort(error.grpc_code, error.message, tuple(trailing))
