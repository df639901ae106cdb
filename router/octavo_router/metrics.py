"""All metrics of a gateway, and of the replicas through it. This module makes ``docs/reference/metrics.md``.

Names are vLLM's with another prefix if the meaning is the same. Engines send totals over their streams. A replica's
series end when the replica is removed. Each gateway has one registry. The process has none.
"""

import bisect
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo_api.v1 import replica_pb2
from octavo_router.answers.request_log import EndedRequest
from octavo_router.fleet.replica_status import ReplicaState
from octavo_router.routing.feed import ResyncReason
from octavo_router.routing.route import Route

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


_ITL_SPEC = _histogram("inter_token_latency_seconds", "Time between two outputs of one request.", _ITL)

REQUEST_SPECS = (
    Spec("request_success", Kind.COUNTER, "Choices that ended, by how.", ("finished_reason",)),
    _histogram(
        "time_to_first_token_seconds", "From a request's arrival to its first output, admission included.", _TTFT
    ),
    _ITL_SPEC,
    _histogram("e2e_request_latency_seconds", "From a request's arrival to its end.", _LONG),
    _histogram("request_queue_time_seconds", "Time that a request waited in its engine.", _PHASE),
    _histogram(
        "request_prefill_time_seconds", "Time from an engine's first work on a request to its first token.", _PHASE
    ),
    _histogram("request_decode_time_seconds", "Time from a request's first token to its last, in its engine.", _PHASE),
    _histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS),
    _histogram("request_generation_tokens", "Tokens generated for a request, all choices together.", _TOKENS),
    _histogram("request_cached_tokens", "Prompt tokens of a request that the engine had in its prefix cache.", _TOKENS),
    _histogram("request_params_n", "Choices asked for.", (1, 2, 5, 10, 20)),
    _histogram("request_params_max_tokens", "The request's max_tokens, where it had one.", _TOKENS),
    _histogram("request_num_preemptions", "How often a request was preempted.", (0, 1, 2, 3, 4, 5, 10, 20)),
    Spec(
        "http_requests",
        Kind.COUNTER,
        "HTTP requests, by path and status (499: the client went away).",
        ("path", "code"),
    ),
    Spec("grpc_requests", Kind.COUNTER, "gRPC requests, by method and status.", ("method", "code")),
    Spec(
        "secret_reloads",
        Kind.COUNTER,
        "Changed secret files (`tls`, `api_keys`), by whether they were taken up (`ok`) or cannot be used (`refused`).",
        ("secret", "outcome"),
    ),
)

ROUTER_SPECS = (
    _histogram("router_select_seconds", "Time to choose a replica.", _SELECT),
    Spec("router_decisions", Kind.COUNTER, "Requests sent to a replica, by policy and reason.", ("policy", "reason")),
    Spec("router_hit_tokens", Kind.COUNTER, "Cached prompt tokens, as predicted and as the engine found.", ("kind",)),
    _histogram("router_prediction_error_tokens", "Difference between the two, for each request.", (0, *_TOKENS)),
    Spec("router_queued_requests", Kind.GAUGE, "Requests that wait here, for admission or for a first engine."),
    Spec("router_inflight_requests", Kind.GAUGE, "Requests sent to engines and not yet ended."),
    Spec("router_index_keys", Kind.GAUGE, "Block hashes in the prefix index."),
    Spec("router_owner_path_gaps", Kind.GAUGE, "Look-ups that met a replica that held a block but not all before it."),
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
        "Part of the KV cache that running requests hold, 0 to 1.",
        lambda load: load.kv_blocks_pinned / load.kv_blocks if load.kv_blocks else 0.0,
    ),
    _gauge("kv_cache_blocks", "Blocks of the KV cache.", lambda load: load.kv_blocks),
    _gauge("kv_cache_blocks_cached", "Blocks that only the prefix cache holds.", lambda load: load.kv_blocks_cached),
    _gauge(
        "waiting_uncached_tokens",
        "Prompt tokens to compute of waiting requests.",
        lambda load: load.waiting_uncached_tokens,
    ),
    _gauge(
        "running_prefill_tokens",
        "Prompt tokens to compute of running requests.",
        lambda load: load.running_prefill_tokens,
    ),
    _gauge("prefill_tokens_per_second", "Measured rate of prefill.", lambda load: load.prefill_tokens_per_s),
    _gauge("decode_step_seconds", "Measured time of a step that only decodes.", lambda load: load.decode_step_s),
    _total("num_preemptions", "Preemptions.", lambda load: load.num_preemptions_total),
    _total("recomputed_tokens", "Tokens computed again after a preemption.", lambda load: load.recomputed_tokens_total),
    _total(
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda load: load.prefix_cache_queries_total,
    ),
    _total("prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda load: load.prefix_cache_hits_total),
    _total("prompt_tokens", "Prompt tokens of requests that an engine took.", lambda load: load.prompt_tokens_total),
    _total("generation_tokens", "Tokens that an engine generated.", lambda load: load.generation_tokens_total),
    _total("evicted_blocks", "Blocks evicted from the prefix cache.", lambda load: load.evicted_blocks_total),
    _total("engine_steps", "Steps of an engine.", lambda load: load.steps_total),
)

LOAD_AGE = Spec("router_load_age_seconds", Kind.GAUGE, "Time since a replica's last word.", _REPLICA)
STREAM_STATE = Spec(
    "router_stream_state", Kind.GAUGE, "1 for the state that a replica's stream is in.", ("replica", "state")
)
RESYNCS = Spec(
    "router_stream_resyncs", Kind.COUNTER, "Snapshots asked for, by what made them necessary.", ("replica", "reason")
)


class Metrics:
    """Counters for both front ends and for the router. All calls are cheap and on the event loop."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        made = {
            spec.name: _make(spec, self.registry) for spec in (*REQUEST_SPECS, *ROUTER_SPECS) if spec is not _ITL_SPEC
        }
        self._counters = {name: metric for name, metric in made.items() if isinstance(metric, Counter)}
        self._gauges = {name: metric for name, metric in made.items() if isinstance(metric, Gauge)}
        self._histograms = {name: metric for name, metric in made.items() if isinstance(metric, Histogram)}
        self._inter_token = _FastHistogram(_ITL_SPEC)
        self.next_tokens = self._inter_token.observe
        self._replicas = _ReplicaCollector()
        self.registry.register(self._inter_token)
        self.registry.register(self._replicas)
        self.engine_load = self._replicas.load
        self.feed_state = self._replicas.state
        self.resync = self._replicas.resync
        self.replica_gone = self._replicas.gone

    # The life of a request (octavo_router.answers.generation.RequestObserver).

    def first_token(self, seconds: float) -> None:
        self._histograms["time_to_first_token_seconds"].observe(seconds)

    def request_ended(self, request: EndedRequest) -> None:
        observe = self._histograms
        for reason in request.finish_reasons:
            self._counters["request_success"].labels(reason).inc()
        observe["e2e_request_latency_seconds"].observe(request.seconds)
        observe["request_prompt_tokens"].observe(request.prompt_tokens)
        observe["request_generation_tokens"].observe(request.completion_tokens)
        observe["request_cached_tokens"].observe(request.cached_tokens)
        observe["request_params_n"].observe(request.sampling.n)
        if request.sampling.max_tokens is not None:
            observe["request_params_max_tokens"].observe(request.sampling.max_tokens)
        if (timing := request.timing) is not None:
            observe["request_queue_time_seconds"].observe(timing.queue_s)
            observe["request_prefill_time_seconds"].observe(timing.prefill_s)
            observe["request_decode_time_seconds"].observe(timing.decode_s)
            observe["request_num_preemptions"].observe(timing.num_preemptions)

    def http_request(self, path: str, code: int) -> None:
        self._counters["http_requests"].labels(path, str(code)).inc()

    def grpc_request(self, method: str, code: str) -> None:
        self._counters["grpc_requests"].labels(method, code).inc()

    def secret_reload(self, secret: str, taken_up: bool) -> None:
        self._counters["secret_reloads"].labels(secret, "ok" if taken_up else "refused").inc()

    # The router (octavo_router.fleet.observer.Observer).

    def decision(self, route: Route) -> None:
        self._counters["router_decisions"].labels(route.policy, route.reason.value).inc()

    def select_seconds(self, seconds: float) -> None:
        self._histograms["router_select_seconds"].observe(seconds)

    def prediction(self, predicted: int, actual: int) -> None:
        self._counters["router_hit_tokens"].labels("predicted").inc(predicted)
        self._counters["router_hit_tokens"].labels("actual").inc(actual)
        self._histograms["router_prediction_error_tokens"].observe(abs(predicted - actual))

    def queue(self, depth: int) -> None:
        self._gauges["router_queued_requests"].set(depth)

    def inflight(self, number: int) -> None:
        self._gauges["router_inflight_requests"].set(number)

    def index_size(self, keys: int, path_gaps: int) -> None:
        self._gauges["router_index_keys"].set(keys)
        self._gauges["router_owner_path_gaps"].set(path_gaps)


def _make(spec: Spec, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    if spec.kind is Kind.HISTOGRAM:
        return Histogram(spec.full_name, spec.help, spec.labels, registry=registry, buckets=spec.buckets)
    kind = Counter if spec.kind is Kind.COUNTER else Gauge
    return kind(spec.full_name, spec.help, spec.labels, registry=registry)


class _FastHistogram(Collector):
    """Histogram for an event at every token.

    It costs a tenth of the library's, because only one event loop writes it.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._counts = [0] * (len(spec.buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._spec.buckets, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._spec.full_name, self._spec.help)
        buckets, running = [], 0
        for bound, count in zip((*self._spec.buckets, float("inf")), self._counts, strict=True):
            running += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), running))
        family.add_metric((), buckets, self._sum)
        yield family


@dataclass(slots=True)
class _Replica:
    state: ReplicaState | None = None
    load: replica_pb2.Load | None = None
    heard: float = 0.0
    resyncs: Tally[str] = field(default_factory=Tally)


class _ReplicaCollector(Collector):
    """The last reports of the replicas."""

    def __init__(self) -> None:
        self._replicas: dict[str, _Replica] = {}

    def load(self, replica: str, load: replica_pb2.Load) -> None:
        known = self._of(replica)
        known.load = load
        known.heard = time.monotonic()

    def state(self, replica: str, state: ReplicaState) -> None:
        self._of(replica).state = state

    def resync(self, replica: str, reason: ResyncReason) -> None:
        self._of(replica).resyncs[reason.value] += 1

    def gone(self, replica: str) -> None:
        self._replicas.pop(replica, None)

    def _of(self, replica: str) -> _Replica:
        return self._replicas.setdefault(replica, _Replica())

    def collect(self) -> Iterator[Metric]:
        now = time.monotonic()
        loads = {name: known for name, known in self._replicas.items() if known.load is not None}
        for item in LOAD_SPECS:
            family = _family(item.spec)
            for name, known in loads.items():
                assert known.load is not None
                family.add_metric((name,), item.read(known.load))
            yield family
        age, states, resyncs = _family(LOAD_AGE), _family(STREAM_STATE), _family(RESYNCS)
        for name, known in self._replicas.items():
            if known.load is not None:
                age.add_metric((name,), now - known.heard)
            for state in ReplicaState:
                states.add_metric((name, state.value), float(state is known.state))
            for reason, count in known.resyncs.items():
                resyncs.add_metric((name, reason), count)
        yield from (age, states, resyncs)


def _family(spec: Spec) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if spec.kind is Kind.COUNTER else GaugeMetricFamily
    return kind(spec.full_name, spec.help, labels=spec.labels)


def all_specs() -> Iterable[Spec]:
    return (*REQUEST_SPECS, *ROUTER_SPECS, *(item.spec for item in LOAD_SPECS), LOAD_AGE, STREAM_STATE, RESYNCS)


def reference_page() -> str:
    """Return ``docs/reference/metrics.md``."""
    lines = [
        "# Metrics",
        "",
        "A gateway's `/metrics` has these families; series with the label `replica` are the engine's own, as it last",
        "reported them. Made by `python -m octavo_router.metrics`.",
        "",
        "| name | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for spec in sorted(all_specs(), key=lambda spec: spec.name):
        name = spec.full_name + ("_total" if spec.kind is Kind.COUNTER else "")
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        lines.append(f"| `{name}` | {spec.kind} | {labels} | {spec.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference_page(), end="")
