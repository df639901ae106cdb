"""The rule for the length of a request: prompt and output fit into the model's context and into one KV cache."""

from octavo_api.errors import CacheCapacityExceeded, ContextLengthExceeded


def check_length(prompt_len: int, max_tokens: int | None, *, max_model_len: int, kv_cache_tokens: int) -> None:
    """Reject a request that no replica with these limits could ever hold. A limit of 0 is unknown and not checked.

    A request without ``max_tokens`` needs room for one output token. Raises ``ContextLengthExceeded`` or
    ``CacheCapacityExceeded``. ``param`` of the error is ``prompt`` if no ``max_tokens`` would fit.
    """
    output = max_tokens or 1
    total = prompt_len + output
    limits = [limit for limit in (max_model_len, kv_cache_tokens) if limit]
    param = "prompt" if limits and prompt_len >= min(limits) else "max_tokens"
    given = f"{param}: got {prompt_len} prompt tokens + {output} output tokens = {total}"
    if max_model_len and total > max_model_len:
        raise ContextLengthExceeded(f"{given}, allowed: {max_model_len} (max_model_len)", param=param)
    if kv_cache_tokens and total > kv_cache_tokens:
        allowed = f"{kv_cache_tokens} (the replica's whole KV cache)"
        raise CacheCapacityExceeded(f"{given}, allowed: {allowed}", param=param)
