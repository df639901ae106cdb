"""Conversion of the core's data to messages of ``octavo.v1``."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, assert_never

import numpy as np

from octavo_api.blocks import HASH_BYTES, BlockHash, Digest, low64
from octavo_api.v1 import replica_pb2, sampling_pb2
from octavo_engine.core.kv.events import CacheEvent, Cleared, Removed, Stored
from octavo_engine.core.plan import Logprobs
from octavo_engine.core.request import RequestOutput
from octavo_engine.core.stats import CoreLoad
from octavo_engine.rates import Measurements

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

_CORE_LOAD = tuple(f.name for f in fields(CoreLoad) if f.name in replica_pb2.Load.DESCRIPTOR.fields_by_name)
_MEASUREMENTS = tuple(f.name for f in fields(Measurements))


_TOKEN_BYTES = 8
"""Maximum bytes of a token id, of any number that may occur."""

_LOGPROB_BYTES = 24
"""Maximum bytes of a token id with its log probability and the headers around them."""

_PART_POSITIONS = 8192
"""Maximum positions of a prompt with log probabilities in one part of an output."""


def size_bound(output: RequestOutput) -> int:
    """Return an upper bound of the bytes that ``add_to_output`` adds, without the text of an error."""
    size = _TOKEN_BYTES * len(output.token_ids) + 128
    if output.logprobs:
        size += sum([_LOGPROB_BYTES * (2 + len(item.top)) for item in output.logprobs])
    if output.prompt_logprobs:
        size += sum([_LOGPROB_BYTES * (2 + len(item.top)) for item in output.prompt_logprobs])
    return size


def in_parts(output: RequestOutput) -> Iterator[RequestOutput]:
    """Yield an output in parts that fit a message. Only a long prompt with log probabilities needs more than one."""
    positions = output.prompt_logprobs
    while len(positions) > _PART_POSITIONS:
        yield RequestOutput(output.request_id, output.choice, (), prompt_logprobs=positions[:_PART_POSITIONS])
        positions = positions[_PART_POSITIONS:]
    yield output if positions is output.prompt_logprobs else replace(output, prompt_logprobs=positions)


def add_to_output(message: replica_pb2.Output, output: RequestOutput) -> None:
    """Add ``output`` to ``message``, which may already hold earlier outputs of the same choice."""
    message.token_ids.extend(output.token_ids)
    if output.logprobs:
        _add_logprobs(message.logprobs, output.logprobs)
    if output.prompt_logprobs:
        _add_logprobs(message.prompt_logprobs, output.prompt_logprobs)
    if output.cached_tokens is not None:
        message.cached_tokens = output.cached_tokens
    if output.finish_reason is not None:
        _finish(message, output)


def _finish(message: replica_pb2.Output, output: RequestOutput) -> None:
    assert output.finish_reason is not None
    message.finish_reason = output.finish_reason.to_proto()
    if output.stop_token_id is not None:
        message.stop_token_id = output.stop_token_id
    if output.error is not None:
        message.error.CopyFrom(output.error.to_proto())
    if output.timing is not None:
        timing = output.timing
        message.timing.queue_s = timing.queue_s
        message.timing.prefill_s = timing.prefill_s
        message.timing.decode_s = timing.decode_s
        message.timing.num_preemptions = timing.num_preemptions


def _add_logprobs(
    positions: "RepeatedCompositeFieldContainer[sampling_pb2.PositionLogprobs]", logprobs: Iterable[Logprobs]
) -> None:
    for item in logprobs:
        position = positions.add()
        position.chosen.token_id = item.token_id
        position.chosen.logprob = item.logprob
        for token_id, logprob in item.top:
            position.top.add(token_id=token_id, logprob=logprob)


def event_messages(events: Iterable[CacheEvent]) -> tuple[list[replica_pb2.CacheEvent], int]:
    """Return the events as messages, and the number of hashes in them."""
    messages = []
    size = 0
    for event in events:
        message = replica_pb2.CacheEvent()
        match event:
            case Stored(parent, hashes):
                if parent is not None:
                    message.stored.parent = low64(parent)
                message.stored.hashes.extend([low64(item) for item in hashes])
                size += len(hashes)
            case Removed(hashes):
                message.removed.hashes.extend([low64(item) for item in hashes])
                size += len(hashes)
            case Cleared():
                message.cleared.SetInParent()
            case _:
                assert_never(event)
        messages.append(message)
    return messages, size


def low64s(hashes: Sequence[BlockHash]) -> list[int]:
    """Return ``low64`` of each hash; a snapshot has a hundred thousand of them."""
    words = np.frombuffer(b"".join(hashes), dtype="<u8")
    low: list[int] = words[:: HASH_BYTES // 8].tolist()
    return low


def digest_message(digest: Digest) -> replica_pb2.Digest:
    return replica_pb2.Digest(xor=digest.xor, sum=digest.sum)


def load_message(load: CoreLoad, measurements: Measurements, *, draining: bool) -> replica_pb2.Load:
    message = replica_pb2.Load(draining=draining)
    for name in _CORE_LOAD:
        setattr(message, name, getattr(load, name))
    for name in _MEASUREMENTS:
        setattr(message, name, getattr(measurements, name))
    return message
