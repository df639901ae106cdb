"""All metrics of one gateway, and of the replicas through it: a registry, and the calls that count events."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from octavo_router.answers.request_log import EndedRequest
from octavo_router.metrics.collectors import FastHistogram, ReplicaCollector
from octavo_router.metrics.families import INTER_TOKEN_LATENCY, REQUEST_SPECS, ROUTER_SPECS, Kind, Spec
from octavo_router.routing.route import Route


class Metrics:
    """Counters for both front ends and for the router. All calls are cheap and on the event loop."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        specs = [spec for spec in (*REQUEST_SPECS, *ROUTER_SPECS) if spec is not INTER_TOKEN_LATENCY]
        made = {spec.name: _create(spec, self.registry) for spec in specs}
        self._counters = {name: metric for name, metric in made.items() if isinstance(metric, Counter)}
        self._gauges = {name: metric for name, metric in made.items() if isinstance(metric, Gauge)}
        self._histograms = {name: metric for name, metric in made.items() if isinstance(metric, Histogram)}
        self._inter_token = FastHistogram(INTER_TOKEN_LATENCY)
        self.next_tokens = self._inter_token.observe
        self._replicas = ReplicaCollector()
        self.registry.register(self._inter_token)
        self.registry.register(self._replicas)
        self.engine_load = self._replicas.set_load
        self.feed_state = self._replicas.set_state
        self.resync = self._replicas.count_resync
        self.replica_removed = self._replicas.remove

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

    def secret_reload(self, secret: str, applied: bool) -> None:
        self._counters["secret_reloads"].labels(secret, "ok" if applied else "refused").inc()

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


def _create(spec: Spec, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    if spec.kind is Kind.HISTOGRAM:
        return Histogram(spec.full_name, spec.help, spec.labels, registry=registry, buckets=spec.buckets)
    kind = Counter if spec.kind is Kind.COUNTER else Gauge
    return kind(spec.full_name, spec.help, spec.labels, registry=registry)
