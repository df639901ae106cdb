"""Metric families: name, kind, labels, buckets and meaning of each.

Names are vLLM's with another prefix if the meaning is the same.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from octavo_api.v1 import replica_pb2

PREFIX = "octavo_"


def _bounds(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split())


_TTFT = _bounds(".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560")
_ITL = _bounds(".001 .002 .004 .006 .008 .01 .015 .02 .025 .03 .04 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 10 20 40 80")
_LONG = _bounds(".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680")
_PHASE = _bounds(".001 .005 .01 .05 .1") + _LONG
_TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
_SELECT = _bounds("5e-6 1e-5 2e-5 5e-5 1e-4 2e-4 5e-4 1e-3 1e-2 .1")


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Spec:
    """One family. Counters are named here without the ``_total`` of their published names."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        return PREFIX + self.name


def _histogram(name: str, help: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Spec:
    return Spec(name, Kind.HISTOGRAM, help, labels, buckets)


INTER_TOKEN_LATENCY = _histogram("inter_token_latency_seconds", "Time between two outputs of one request.", _ITL)

REQUEST_SPECS = (
    Spec("request_success", Kind.COUNTER, "Choices that ended, by finish reason.", ("finished_reason",)),
    _histogram(
        "time_to_first_token_seconds", "Time from a request's arrival to its first output, including admission.", _TTFT
    ),
    INTER_TOKEN_LATENCY,
    _histogram("e2e_request_latency_seconds", "Time from a request's arrival to its end.", _LONG),
    _histogram("request_queue_time_seconds", "Time that a request waited in its engine.", _PHASE),
    _histogram(
        "request_prefill_time_seconds", "Time from an engine's first work on a request to its first token.", _PHASE
    ),
    _histogram("request_decode_time_seconds", "Time from a request's first token to its last, in its engine.", _PHASE),
    _histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS),
    _histogram("request_generation_tokens", "Tokens generated for a request, all choices together.", _TOKENS),
    _histogram("request_cached_tokens", "Prompt tokens of a request found in its engine's prefix cache.", _TOKENS),
    _histogram("request_params_n", "Number of choices that a request asks for (n).", (1, 2, 5, 10, 20)),
    _histogram("request_params_max_tokens", "max_tokens of a request, if it is set.", _TOKENS),
    _histogram("request_num_preemptions", "Preemptions of one request in its engine.", (0, 1, 2, 3, 4, 5, 10, 20)),
    Spec(
        "http_requests",
        Kind.COUNTER,
        "HTTP requests, by path and status (499: the client closed the connection).",
        ("path", "code"),
    ),
    Spec("grpc_requests", Kind.COUNTER, "gRPC requests, by method and status.", ("method", "code")),
    Spec(
        "secret_reloads",
        Kind.COUNTER,
        "Reloads of changed secret files (`tls`, `api_keys`): applied (`ok`) or rejected (`refused`).",
        ("secret", "outcome"),
    ),
)

ROUTER_SPECS = (
    _histogram("router_select_seconds", "Time to choose a replica.", _SELECT),
    Spec("router_decisions", Kind.COUNTER, "Requests sent to a replica, by policy and reason.", ("policy", "reason")),
    Spec(
        "router_hit_tokens",
        Kind.COUNTER,
        "Cached prompt tokens: predicted by the router, and found by the engine.",
        ("kind",),
    ),
    _histogram(
        "router_prediction_error_tokens",
        "Difference between predicted and found cached prompt tokens of a request.",
        (0, *_TOKENS),
    ),
    Spec(
        "router_queued_requests",
        Kind.GAUGE,
        "Requests waiting in the gateway, for admission or for a first engine replica.",
    ),
    Spec("router_inflight_requests", Kind.GAUGE, "Requests sent to engines and not yet ended."),
    Spec("router_index_keys", Kind.GAUGE, "Block hashes in the prefix index."),
    Spec(
        "router_owner_path_gaps",
        Kind.GAUGE,
        "Lookups that found a hole: a replica had a block without a block before it.",
    ),
)

_REPLICA = ("replica",)


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """A family whose values come from a replica's load."""

    spec: Spec
    read: Callable[[replica_pb2.Load], float]


def _gauge(name: str, help: str, read: Callable[[replica_pb2.Load], float]) -> LoadSpec:
    return LoadSpec(Spec(name, Kind.GAUGE, help, _REPLICA), read)


def _total(name: str, help: str, read: Callable[[replica_pb2.Load], float]) -> LoadSpec:
    return LoadSpec(Spec(name, Kind.COUNTER, help, _REPLICA), read)


LOAD_SPECS = (
    _gauge("num_requests_running", "Requests in an engine's batch.", lambda load: load.num_requests_running),
    _gauge("num_requests_waiting", "Requests waiting in an engine.", lambda load: load.num_requests_waiting),
    _gauge(
        "kv_cache_usage_perc",
        "Fraction of the KV cache in use by running requests, 0 to 1.",
        lambda load: load.kv_blocks_pinned / load.kv_blocks if load.kv_blocks else 0.0,
    ),
    _gauge("kv_cache_blocks", "Blocks of the KV cache.", lambda load: load.kv_blocks),
    _gauge("kv_cache_blocks_cached", "Blocks that only the prefix cache holds.", lambda load: load.kv_blocks_cached),
    _gauge(
        "waiting_uncached_tokens",
        "Prompt tokens of waiting requests that are not computed yet.",
        lambda load: load.waiting_uncached_tokens,
    ),
    _gauge(
        "running_prefill_tokens",
        "Prompt tokens of running requests that are not computed yet.",
        lambda load: load.running_prefill_tokens,
    ),
    _gauge("prefill_tokens_per_second", "Measured prefill rate of an engine.", lambda load: load.prefill_tokens_per_s),
    _gauge(
        "decode_step_seconds", "Measured time of an engine step that only decodes.", lambda load: load.decode_step_s
    ),
    _total("num_preemptions", "Preemptions.", lambda load: load.num_preemptions_total),
    _total("recomputed_tokens", "Tokens computed again after a preemption.", lambda load: load.recomputed_tokens_total),
    _total(
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda load: load.prefix_cache_queries_total,
    ),
    _total("prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda load: load.prefix_cache_hits_total),
    _total(
        "prompt_tokens", "Prompt tokens of requests that an engine accepted.", lambda load: load.prompt_tokens_total
    ),
    _total("generation_tokens", "Tokens that an engine generated.", lambda load: load.generation_tokens_total),
    _total("evicted_blocks", "Blocks evicted from the prefix cache.", lambda load: load.evicted_blocks_total),
    _total("engine_steps", "Steps of an engine.", lambda load: load.steps_total),
)

LOAD_AGE = Spec("router_load_age_seconds", Kind.GAUGE, "Time since a replica's last report.", _REPLICA)
STREAM_STATE = Spec(
    "router_stream_state",
    Kind.GAUGE,
    "1 for the current state of a replica's stream, 0 for all others.",
    ("replica", "state"),
)
RESYNCS = Spec(
    "router_stream_resyncs", Kind.COUNTER, "Snapshots that the router requested, by reason.", ("replica", "reason")
)


def all_specs() -> Iterable[Spec]:
    return (*REQUEST_SPECS, *ROUTER_SPECS, *(item.spec for item in LOAD_SPECS), LOAD_AGE, STREAM_STATE, RESYNCS)
