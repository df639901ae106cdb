import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_api.errors import InvalidRequest
from octavo_api.sampling import MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_N, MAX_STOP_TOKEN_IDS, SamplingParams
from octavo_api.v1 import sampling_pb2

LARGE = 2**31 - 1


def numbers(low: float, high: float, *, above: bool = False) -> st.SearchStrategy[float]:
    return st.floats(low, high, exclude_min=above) | st.integers(math.floor(low) + above, math.floor(high))


params = st.builds(
    SamplingParams,
    n=st.integers(1, MAX_N),
    temperature=numbers(0, 2),
    top_k=st.integers(0, LARGE),
    top_p=numbers(0, 1, above=True),
    min_p=numbers(0, 1),
    seed=st.none() | st.integers(0, 2**64 - 1),
    repetition_penalty=numbers(0, 10, above=True),
    presence_penalty=numbers(-2, 2),
    frequency_penalty=numbers(-2, 2),
    logit_bias=st.dictionaries(st.integers(0, LARGE), numbers(-100, 100), max_size=5),
    max_tokens=st.none() | st.integers(50, LARGE),
    min_tokens=st.integers(0, 50),
    ignore_eos=st.booleans(),
    stop_token_ids=st.lists(st.integers(0, LARGE), max_size=5).map(tuple),
    logprobs=st.none() | st.integers(0, MAX_LOGPROBS),
    prompt_logprobs=st.none() | st.integers(0, MAX_LOGPROBS),
)


@given(params)
def test_the_wire_changes_nothing(sampling: SamplingParams) -> None:
    wire = sampling.to_proto().SerializeToString()
    assert SamplingParams.from_proto(sampling_pb2.SamplingParams.FromString(wire)) == sampling


def test_the_message_has_every_field() -> None:
    assert {f.name for f in fields(SamplingParams)} == set(sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name)


def test_an_empty_message_means_the_defaults() -> None:
    assert SamplingParams.from_proto(sampling_pb2.SamplingParams()) == SamplingParams()


def test_the_models_defaults_stand_in_for_what_is_not_set() -> None:
    message = sampling_pb2.SamplingParams(temperature=0.0, top_k=0)
    sampling = SamplingParams.from_proto(message, {"temperature": 0.7, "top_k": 20, "top_p": 0.8})
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.0, 0, 0.8)


OUT_OF_RANGE: list[tuple[str, Any, str]] = [
    ("n", 0, "an integer from 1 to 64"),
    ("n", 65, "an integer from 1 to 64"),
    ("n", True, "an integer from 1 to 64"),
    ("temperature", -0.1, "a number from 0 to 2"),
    ("temperature", 2.1, "a number from 0 to 2"),
    ("temperature", math.nan, "a number from 0 to 2"),
    ("temperature", math.inf, "a number from 0 to 2"),
    ("temperature", "hot", "a number from 0 to 2"),
    ("temperature", None, "a number from 0 to 2"),
    ("temperature", False, "a number from 0 to 2"),
    ("top_k", -1, "an integer from 0 to 2147483647"),
    ("top_k", 1.0, "an integer from 0 to 2147483647"),
    ("top_p", 0, "a number above 0, up to 1"),
    ("top_p", 1.01, "a number above 0, up to 1"),
    ("min_p", -0.01, "a number from 0 to 1"),
    ("min_p", 1.01, "a number from 0 to 1"),
    ("seed", -1, "an integer from 0 to 18446744073709551615"),
    ("seed", 2**64, "an integer from 0 to 18446744073709551615"),
    ("repetition_penalty", 0.0, "a number above 0, up to 10"),
    ("repetition_penalty", 10.5, "a number above 0, up to 10"),
    ("presence_penalty", -2.1, "a number from -2 to 2"),
    ("presence_penalty", 2.1, "a number from -2 to 2"),
    ("frequency_penalty", -2.1, "a number from -2 to 2"),
    ("frequency_penalty", 2.1, "a number from -2 to 2"),
    ("max_tokens", 0, "an integer from 1 to 2147483647"),
    ("max_tokens", 2**31, "an integer from 1 to 2147483647"),
    ("min_tokens", -1, "an integer from 0 to 2147483647"),
    ("logprobs", 21, "an integer from 0 to 20"),
    ("prompt_logprobs", -1, "an integer from 0 to 20"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), OUT_OF_RANGE)
def test_every_limit_names_field_value_and_what_is_allowed(name, value, allowed) -> None:
    with pytest.raises(InvalidRequest) as error:
        SamplingParams(**{name: value})
    assert error.value.message == f"{name}: got {value!r}, allowed: {allowed}"
    assert error.value.param == name


def test_every_scalar_has_a_limit_that_is_tested() -> None:
    tested = {name for name, *_ in OUT_OF_RANGE}
    assert {f.name for f in fields(SamplingParams)} - tested == {"ignore_eos", "logit_bias", "stop_token_ids"}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"stop_token_ids": (-1,)}, "stop_token_ids: got -1, allowed: an integer from 0"),
        ({"stop_token_ids": (1,) * (MAX_STOP_TOKEN_IDS + 1)}, "stop_token_ids: got 129, allowed: at most 128 ids"),
        ({"logit_bias": {-1: 0.0}}, "logit_bias: got -1, allowed: an integer from 0"),
        ({"logit_bias": {7: 101.0}}, "logit_bias[7]: got 101.0, allowed: a number from -100 to 100"),
        (
            {"logit_bias": dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 0.0)},
            "logit_bias: got 1025, allowed: at most 1024 tokens",
        ),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens: got 9, allowed: at most 8, the value of max_tokens"),
    ],
)
def test_limits_of_lists_and_pairs(values, says) -> None:
    with pytest.raises(InvalidRequest) as error:
        SamplingParams(**values)
    assert error.value.message.startswith(says)


def test_copies_are_checked_again() -> None:
    sampling = SamplingParams()
    assert sampling.with_(seed=7).seed == 7
    with pytest.raises(InvalidRequest, match="seed: got -7"):
        sampling.with_(seed=-7)


def test_greedy_is_temperature_zero() -> None:
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=1e-9).greedy
