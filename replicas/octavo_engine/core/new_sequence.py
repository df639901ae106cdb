"""The checks of a new request, and the state that it begins with."""

from octavo_api.blocks import BlockHash, chain_hashes, next_hash
from octavo_api.errors import InvalidRequest
from octavo_api.lengths import check_length
from octavo_engine.core.config import CoreConfig
from octavo_engine.core.request import NewRequest
from octavo_engine.core.state.sequence import OrderKey, Request, Sequence
from octavo_engine.core.state.stopping import StopRule

_MAX_TOKEN_ID = 2**31 - 1


def build_request(
    new: NewRequest, config: CoreConfig, *, key: OrderKey, arrival: int, drawn_seed: int, now: float
) -> Request:
    """Return the request with its leader, ``max_tokens`` and ``seed`` set.

    Raises ``InvalidRequest``, ``ContextLengthExceeded`` or ``CacheCapacityExceeded`` if it could never be served.
    """
    max_tokens = resolve_max_tokens(new, config)
    seed = drawn_seed if new.sampling.seed is None else new.sampling.seed
    sampling = new.sampling.with_(max_tokens=max_tokens, seed=seed)
    root = config.hash_space.root(new.cache_salt)
    prompt_len = len(new.token_ids)
    request = Request(
        id=new.request_id,
        sampling=sampling,
        stop=StopRule.of(sampling, config.eos_token_ids),
        arrival=arrival,
        arrived_at=now,
        deadline=new.deadline,
        root=root,
        next_prompt_logprob=prompt_len if sampling.prompt_logprobs is None else 1,
    )
    request.leader = request.sequences[0] = Sequence(
        request=request,
        choice=0,
        key=key,
        tokens=list(new.token_ids),
        prompt_len=prompt_len,
        max_len=prompt_len + max_tokens,
        hashes=resolve_hashes(new, root, config) if config.enable_prefix_caching else [],
        choices=(0,),
        pending_forks=tuple(range(1, sampling.n)),
    )
    return request


def resolve_max_tokens(new: NewRequest, config: CoreConfig) -> int:
    """Return the maximum output length: the requested one, or all that model and KV cache leave.

    Raises ``InvalidRequest``, ``ContextLengthExceeded`` or ``CacheCapacityExceeded`` if the request could never be
    served.
    """
    prompt_len = len(new.token_ids)
    if not prompt_len:
        raise InvalidRequest.field("prompt", prompt_len, "at least 1 token")
    for token_id in (min(new.token_ids), max(new.token_ids)):
        if not 0 <= token_id <= _MAX_TOKEN_ID:
            raise InvalidRequest.field("prompt", token_id, f"token ids from 0 to {_MAX_TOKEN_ID}")
    max_tokens = new.sampling.max_tokens
    check_length(prompt_len, max_tokens, max_model_len=config.max_model_len, kv_cache_tokens=config.capacity_tokens)
    return max_tokens or min(config.max_model_len, config.capacity_tokens) - prompt_len


def resolve_hashes(new: NewRequest, root: BlockHash, config: CoreConfig) -> list[BlockHash]:
    """Return the hashes of the full prompt blocks: the hashes in the request, or new ones.

    The first hash binds model, KV dtype, block size and salt, so the core checks it. A sender that hashes otherwise
    would poison the cache. Raises ``InvalidRequest``.
    """
    if new.hashes is None:
        return chain_hashes(root, new.token_ids, config.block_size)
    full = len(new.token_ids) // config.block_size
    if len(new.hashes) != full:
        raise InvalidRequest.field("hashes", len(new.hashes), f"{full}, one for each full block of the prompt")
    if full and new.hashes[0] != next_hash(root, new.token_ids[: config.block_size]):
        raise InvalidRequest.field(
            "hashes",
            new.hashes[0].hex(),
            f"octavo_api.blocks hashes of model {config.model_key}, KV dtype {config.kv_dtype}, "
            f"block size {config.block_size} and the request's salt",
        )
    return list(new.hashes)
