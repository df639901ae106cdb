"""Reader of the requests that a gateway submits. It passes only requests that core and runner can compute."""

import math
from collections.abc import Hashable, Iterable

from octavo_api.blocks import BlockHash, chain_hashes, unpack
from octavo_api.errors import InvalidRequest
from octavo_api.sampling import SamplingParams
from octavo_api.v1 import replica_pb2
from octavo_engine.core.config import CoreConfig
from octavo_engine.core.request import NewRequest

VERIFY_EVERY = 1000


class Intake:
    """Reader of the ``Submit`` messages of one gateway.

    It accepts most block hashes of the gateway without a check. It computes the hashes of the first request, and of
    every ``VERIFY_EVERY``-th, again and compares them. Wrong hashes would silently give answers to another prompt, or
    to another tenant's.
    """

    def __init__(self, config: CoreConfig, vocab_size: int) -> None:
        self._config = config
        self._vocab_size = vocab_size
        self._count = 0

    def read(self, submit: replica_pb2.Submit, request_id: Hashable, now: float) -> NewRequest:
        """Return the request, known to the core as ``request_id``.

        Raises ``InvalidRequest`` for a value out of range, a token that the model does not have, and hashes that do not
        match the tokens.
        """
        token_ids = tuple(submit.token_ids)
        self._check_vocabulary("token_ids", token_ids)
        sampling = SamplingParams.from_proto(submit.sampling)
        self._check_vocabulary("stop_token_ids", sampling.stop_token_ids)
        self._check_vocabulary("logit_bias", sampling.logit_bias)
        if not math.isfinite(submit.timeout_s) or submit.timeout_s < 0:
            raise InvalidRequest.field("timeout_s", submit.timeout_s, "seconds, 0 for no limit")
        return NewRequest(
            request_id=request_id,
            token_ids=token_ids,
            hashes=self._hashes(submit),
            sampling=sampling,
            priority=submit.priority,
            cache_salt=submit.cache_salt,
            deadline=now + submit.timeout_s if submit.timeout_s else None,
        )

    def _hashes(self, submit: replica_pb2.Submit) -> list[BlockHash] | None:
        """Return the chain that the gateway computed; None if it sent none, so that the core computes it.

        The core checks the length of the chain.
        """
        if not submit.hashes:
            return None
        try:
            hashes = unpack(submit.hashes)
        except ValueError as error:
            raise InvalidRequest(str(error), param="hashes") from None
        if self._count % VERIFY_EVERY == 0:
            self._verify(hashes, submit)
        self._count += 1
        return hashes

    def _verify(self, hashes: list[BlockHash], submit: replica_pb2.Submit) -> None:
        root = self._config.hash_space.root(submit.cache_salt)
        if hashes != chain_hashes(root, submit.token_ids, self._config.block_size):
            raise InvalidRequest(
                "hashes: not the chain of token_ids for this model, KV dtype, block size and cache_salt; gateway and "
                "replica disagree about one of them",
                param="hashes",
            )

    def _check_vocabulary(self, param: str, token_ids: Iterable[int]) -> None:
        highest = max(token_ids, default=0)
        if highest >= self._vocab_size:
            raise InvalidRequest.field(param, highest, f"token ids from 0 to {self._vocab_size - 1}")
