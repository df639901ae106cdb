"""The life of one request, shared by both front ends: prompt, token ids, a stream from an engine, text."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from octavo_api.errors import DeadlineExceeded, Draining, InvalidRequest, ModelNotFound
from octavo_api.settings import RouterSettings
from octavo_router.answers.call import Call, ChatPrompt, Prompt, TextPrompt, check_token_ids
from octavo_router.answers.generation import Generation, RequestObserver
from octavo_router.fleet.engine_request import EngineRequest, Pool
from octavo_text import ModelText

GRACE_S = 2.0
"""Maximum seconds that an answer may run after its deadline. Then its client does not read, or its stream hangs."""


class Gateway:
    """Converter of calls into generations.

    A change of ``settings`` is allowed at any time and holds for later calls.
    """

    def __init__(
        self,
        *,
        text: ModelText,
        served_name: str,
        settings: RouterSettings,
        pool: Pool,
        observer: RequestObserver,
    ) -> None:
        self.text = text
        self.served_name = served_name
        self.settings = settings
        self.draining = False
        self.created = int(time.time())
        self._pool = pool
        self._observer = observer
        self._generations: set[Generation] = set()
        self._ended = asyncio.Event()

    @property
    def active_requests(self) -> int:
        return len(self._generations)

    @property
    def ready(self) -> bool:
        """True if the gateway would accept a request now, even if the request must wait for a replica to start."""
        return not self.draining and (self._pool.holds_requests or self.has_replica)

    @property
    def has_replica(self) -> bool:
        return any(replica.routable for replica in self._pool.replicas())

    @property
    def max_model_len(self) -> int | None:
        """Maximum tokens by the replicas' announcements, else by the model's files."""
        limits = self._pool.limits
        return limits.max_model_len if limits is not None else self.text.max_position_embeddings

    def check_accepts(self) -> None:
        """Raise ``Draining`` if the gateway accepts no new requests."""
        if self.draining:
            raise Draining("the gateway is shutting down and accepts no new requests", retry_after_s=1.0)

    def check_model(self, name: str) -> None:
        if name != self.served_name:
            raise ModelNotFound(
                f"model: got {name!r}, allowed: {self.served_name!r} (the model does not exist here)", param="model"
            )

    async def drain(self, timeout_s: float) -> bool:
        """Reject new calls and wait for running calls. Return True if all of them ended in time."""
        self.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._generations:
                    self._ended.clear()
                    await self._ended.wait()
        return not self._generations

    @asynccontextmanager
    async def time_limit(self) -> AsyncIterator[None]:
        """Apply the deadline of last resort, after those of the engine and the fleet.

        It also ends answers that no client reads.
        """
        seconds = self.settings.request_timeout_seconds
        try:
            async with asyncio.timeout(seconds + GRACE_S):
                yield
        except TimeoutError:
            raise DeadlineExceeded(f"the request did not end within {seconds} seconds") from None

    async def encode(self, prompt: Prompt) -> list[int]:
        """Return the prompt's token ids.

        Raise ``InvalidRequest`` if there are none, or if one is not a token of the model.
        """
        if isinstance(prompt, TextPrompt):
            ids = await self.text.encode(prompt.text, add_special_tokens=prompt.add_special_tokens)
        elif isinstance(prompt, ChatPrompt):
            ids = await self.text.encode_chat(
                prompt.messages,
                add_generation_prompt=prompt.add_generation_prompt,
                template_kwargs=prompt.template_kwargs,
            )
        else:
            ids = prompt.ids
            check_token_ids("prompt", ids, self.text.vocab_size)
        if not ids:
            raise InvalidRequest.field("prompt", "", "at least one token")
        return ids

    async def start_generation(self, call: Call) -> Generation:
        """Send the call to an engine. The caller must close the generation, whatever happens.

        Raise a ``RequestError`` if the prompt is wrong or the call is not admitted.
        """
        self.check_accepts()  # again: a drain may have begun while the body arrived
        now = asyncio.get_running_loop().time()
        limit_s = float(self.settings.request_timeout_seconds)
        deadline = now + (limit_s if call.timeout_s is None else min(limit_s, call.timeout_s))
        check_token_ids("logit_bias", list(call.sampling.logit_bias), self.text.vocab_size)
        check_token_ids("stop_token_ids", call.sampling.stop_token_ids, self.text.vocab_size)
        ids = await self.encode(call.prompt)
        request = EngineRequest(
            request_id=call.request_id,
            token_ids=ids,
            sampling=call.sampling,
            deadline=deadline,
            priority=call.priority,
            cache_salt=call.salt,
            tenant=call.tenant,
            buffered=call.buffered,
        )
        generation = Generation(call, ids, now, self.text, self._observer, on_close=self._closed)
        self._generations.add(generation)
        try:
            generation.attach(await self._pool.open(request))
        except Exception as error:
            await generation.aclose(error)
            raise
        except asyncio.CancelledError:
            await generation.aclose()
            raise
        return generation

    def _closed(self, generation: Generation) -> None:
        self._generations.discard(generation)
        self._ended.set()
