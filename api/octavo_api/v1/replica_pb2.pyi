from octavo_api.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_DEVICE: _ClassVar[Tier]
    TIER_HOST: _ClassVar[Tier]
TIER_DEVICE: Tier
TIER_HOST: Tier

class GatewayMessage(_message.Message):
    __slots__ = ("greeting", "submit", "abort", "snapshot_request")
    GREETING_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    greeting: Greeting
    submit: Submit
    abort: Abort
    snapshot_request: SnapshotRequest
    def __init__(self, greeting: _Optional[_Union[Greeting, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., snapshot_request: _Optional[_Union[SnapshotRequest, _Mapping]] = ...) -> None: ...

class ReplicaMessage(_message.Message):
    __slots__ = ("hello", "step", "snapshot")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    step: Step
    snapshot: Snapshot
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., snapshot: _Optional[_Union[Snapshot, _Mapping]] = ...) -> None: ...

class Greeting(_message.Message):
    __slots__ = ("version", "gateway")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    version: int
    gateway: str
    def __init__(self, version: _Optional[int] = ..., gateway: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "replica", "epoch", "model_key", "kv_dtype", "block_size", "stride", "capacity_blocks", "limits")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    version: int
    replica: str
    epoch: int
    model_key: str
    kv_dtype: str
    block_size: int
    stride: int
    capacity_blocks: int
    limits: Limits
    def __init__(self, version: _Optional[int] = ..., replica: _Optional[str] = ..., epoch: _Optional[int] = ..., model_key: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., block_size: _Optional[int] = ..., stride: _Optional[int] = ..., capacity_blocks: _Optional[int] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_model_len", "max_num_seqs", "kv_cache_tokens")
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_model_len: int
    max_num_seqs: int
    kv_cache_tokens: int
    def __init__(self, max_model_len: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., kv_cache_tokens: _Optional[int] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("id", "request_id", "token_ids", "hashes", "sampling", "priority", "cache_salt", "timeout_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    id: int
    request_id: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    hashes: bytes
    sampling: _sampling_pb2.SamplingParams
    priority: int
    cache_salt: str
    timeout_s: float
    def __init__(self, id: _Optional[int] = ..., request_id: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., hashes: _Optional[bytes] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., priority: _Optional[int] = ..., cache_salt: _Optional[str] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("targets",)
    class Target(_message.Message):
        __slots__ = ("id", "choice")
        ID_FIELD_NUMBER: _ClassVar[int]
        CHOICE_FIELD_NUMBER: _ClassVar[int]
        id: int
        choice: int
        def __init__(self, id: _Optional[int] = ..., choice: _Optional[int] = ...) -> None: ...
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    targets: _containers.RepeatedCompositeFieldContainer[Abort.Target]
    def __init__(self, targets: _Optional[_Iterable[_Union[Abort.Target, _Mapping]]] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Step(_message.Message):
    __slots__ = ("epoch", "seq", "outputs", "events", "load", "digest", "n_blocks", "events_lost")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    N_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_LOST_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    outputs: _containers.RepeatedCompositeFieldContainer[Output]
    events: _containers.RepeatedCompositeFieldContainer[CacheEvent]
    load: Load
    digest: Digest
    n_blocks: int
    events_lost: bool
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[CacheEvent, _Mapping]]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., digest: _Optional[_Union[Digest, _Mapping]] = ..., n_blocks: _Optional[int] = ..., events_lost: _Optional[bool] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("id", "choice", "token_ids", "logprobs", "prompt_logprobs", "finish_reason", "stop_token_id", "cached_tokens", "error", "timing")
    ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    id: int
    choice: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.PositionLogprobs]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.PositionLogprobs]
    finish_reason: _sampling_pb2.FinishReason
    stop_token_id: int
    cached_tokens: int
    error: Error
    timing: Timing
    def __init__(self, id: _Optional[int] = ..., choice: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_sampling_pb2.PositionLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_sampling_pb2.PositionLogprobs, _Mapping]]] = ..., finish_reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("kind", "message", "param", "retry_after_s")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    param: str
    retry_after_s: float
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., param: _Optional[str] = ..., retry_after_s: _Optional[float] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("queue_s", "prefill_s", "decode_s", "num_preemptions")
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    queue_s: float
    prefill_s: float
    decode_s: float
    num_preemptions: int
    def __init__(self, queue_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., decode_s: _Optional[float] = ..., num_preemptions: _Optional[int] = ...) -> None: ...

class CacheEvent(_message.Message):
    __slots__ = ("stored", "removed", "cleared")
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    stored: Stored
    removed: Removed
    cleared: Cleared
    def __init__(self, stored: _Optional[_Union[Stored, _Mapping]] = ..., removed: _Optional[_Union[Removed, _Mapping]] = ..., cleared: _Optional[_Union[Cleared, _Mapping]] = ...) -> None: ...

class Stored(_message.Message):
    __slots__ = ("parent", "hashes", "tier")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    parent: int
    hashes: _containers.RepeatedScalarFieldContainer[int]
    tier: Tier
    def __init__(self, parent: _Optional[int] = ..., hashes: _Optional[_Iterable[int]] = ..., tier: _Optional[_Union[Tier, str]] = ...) -> None: ...

class Removed(_message.Message):
    __slots__ = ("hashes", "tier")
    HASHES_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    hashes: _containers.RepeatedScalarFieldContainer[int]
    tier: Tier
    def __init__(self, hashes: _Optional[_Iterable[int]] = ..., tier: _Optional[_Union[Tier, str]] = ...) -> None: ...

class Cleared(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Digest(_message.Message):
    __slots__ = ("xor", "sum")
    XOR_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    xor: int
    sum: int
    def __init__(self, xor: _Optional[int] = ..., sum: _Optional[int] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("epoch", "seq", "hashes", "digest")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    hashes: _containers.RepeatedScalarFieldContainer[int]
    digest: Digest
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., hashes: _Optional[_Iterable[int]] = ..., digest: _Optional[_Union[Digest, _Mapping]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("num_requests_running", "num_requests_waiting", "waiting_uncached_tokens", "running_prefill_tokens", "kv_blocks", "kv_blocks_pinned", "kv_blocks_cached", "prefill_tokens_per_s", "decode_step_s", "step_s", "step_tokens", "num_preemptions_total", "recomputed_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_total", "generation_tokens_total", "evicted_blocks_total", "steps_total", "draining")
    NUM_REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_UNCACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_PINNED_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_STEP_S_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_QUERIES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_HITS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EVICTED_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STEPS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    num_requests_running: int
    num_requests_waiting: int
    waiting_uncached_tokens: int
    running_prefill_tokens: int
    kv_blocks: int
    kv_blocks_pinned: int
    kv_blocks_cached: int
    prefill_tokens_per_s: float
    decode_step_s: float
    step_s: float
    step_tokens: int
    num_preemptions_total: int
    recomputed_tokens_total: int
    prefix_cache_queries_total: int
    prefix_cache_hits_total: int
    prompt_tokens_total: int
    generation_tokens_total: int
    evicted_blocks_total: int
    steps_total: int
    draining: bool
    def __init__(self, num_requests_running: _Optional[int] = ..., num_requests_waiting: _Optional[int] = ..., waiting_uncached_tokens: _Optional[int] = ..., running_prefill_tokens: _Optional[int] = ..., kv_blocks: _Optional[int] = ..., kv_blocks_pinned: _Optional[int] = ..., kv_blocks_cached: _Optional[int] = ..., prefill_tokens_per_s: _Optional[float] = ..., decode_step_s: _Optional[float] = ..., step_s: _Optional[float] = ..., step_tokens: _Optional[int] = ..., num_preemptions_total: _Optional[int] = ..., recomputed_tokens_total: _Optional[int] = ..., prefix_cache_queries_total: _Optional[int] = ..., prefix_cache_hits_total: _Optional[int] = ..., prompt_tokens_total: _Optional[int] = ..., generation_tokens_total: _Optional[int] = ..., evicted_blocks_total: _Optional[int] = ..., steps_total: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...
