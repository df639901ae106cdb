"""The rule of gateway and engine for requests that are too long for the model or for one KV cache."""

import pytest

from octavo_api.errors import CacheCapacityExceeded, ContextLengthExceeded, RequestError
from octavo_api.lengths import check_length


@pytest.mark.parametrize(("prompt_len", "max_tokens"), [(1, None), (15, None), (15, 1), (10, 6), (1, 15)])
def test_a_request_that_fills_the_context_fits(prompt_len, max_tokens):
    check_length(prompt_len, max_tokens, max_model_len=16, kv_cache_tokens=16)


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "limits", "error", "message", "param"),
    [
        (16, None, (16, 99), ContextLengthExceeded, "prompt: got 16 prompt tokens + 1 output tokens = 17, ", "prompt"),
        (10, 7, (16, 99), ContextLengthExceeded, "allowed: 16 (max_model_len)", "max_tokens"),
        (10, 7, (99, 16), CacheCapacityExceeded, "allowed: 16 (the replica's whole KV cache)", "max_tokens"),
        (16, 1, (99, 16), CacheCapacityExceeded, "prompt: got 16 prompt tokens", "prompt"),
        (20, 90, (100, 16), ContextLengthExceeded, "prompt: got 20 prompt tokens + 90 output tokens = 110", "prompt"),
    ],
)
def test_an_error_names_the_lengths_and_the_field_to_change(prompt_len, max_tokens, limits, error, message, param):
    with pytest.raises(RequestError) as caught:
        check_length(prompt_len, max_tokens, max_model_len=limits[0], kv_cache_tokens=limits[1])
    assert type(caught.value) is error
    assert message in caught.value.message
    assert caught.value.param == param


def test_an_unknown_limit_is_not_checked():
    check_length(10**6, 10**6, max_model_len=0, kv_cache_tokens=0)
    with pytest.raises(CacheCapacityExceeded):
        check_length(10, None, max_model_len=0, kv_cache_tokens=10)
