"""Load of each replica: its own report, and the requests that this router has sent since.

A reservation is made in the same synchronous section as the decision, so that the next decision sees it. It counts on
top of the replica's report until the report must contain it. The engine accepts new requests before each step. So a
request sent during step *s* is in the load that step *s + 2* reports. If the request's own first output comes sooner,
the reservation counts only until then.
"""

from dataclasses import dataclass

from octavo_api.v1 import replica_pb2

DEFAULT_PREFILL_TOKENS_PER_S = 1000.0
"""Prefill speed in tokens per second until any replica has measured one."""

SMOOTHING = 0.1


@dataclass(slots=True)
class FleetRates:
    """Speeds averaged over all replicas. They replace the speeds of a replica without measurements."""

    prefill_tokens_per_s: float = 0.0
    decode_step_s: float = 0.0

    def report(self, load: replica_pb2.Load) -> None:
        self.prefill_tokens_per_s = _smooth(self.prefill_tokens_per_s, load.prefill_tokens_per_s)
        self.decode_step_s = _smooth(self.decode_step_s, load.decode_step_s)


@dataclass(frozen=True, slots=True)
class LoadView:
    """The state of one replica at one moment. ``known`` is False if it is based on this router's own requests only.

    ``num_decoding`` is the number of requests in the measured decode step. ``num_requests`` is the number of
    requests that a new request would join. ``kv_blocks`` is 0 if the size of the cache is unknown.
    """

    known: bool
    queued_tokens: int
    num_requests: int
    num_decoding: int
    prefill_tokens_per_s: float
    decode_step_s: float
    kv_blocks: int
    kv_blocks_used: int


@dataclass(slots=True)
class _Reservation:
    uncached_tokens: int
    blocks: int
    counted_at_step: int
    started: bool = False


class ReplicaLoad:
    """One replica's load. The key of a reservation is the request's id on the replica's stream."""

    def __init__(self, fleet: FleetRates) -> None:
        self._fleet = fleet
        self._reservations: dict[int, _Reservation] = {}
        self._unreported: dict[int, _Reservation] = {}
        self.report: replica_pb2.Load | None = None

    @property
    def num_reservations(self) -> int:
        return len(self._reservations)

    @property
    def num_unreported(self) -> int:
        return len(self._unreported)

    def reserve(self, request: int, *, uncached_tokens: int, blocks: int) -> None:
        steps = self.report.steps_total if self.report is not None else 0
        reservation = _Reservation(uncached_tokens, blocks, steps + 2)
        self._reservations[request] = self._unreported[request] = reservation

    def mark_started(self, request: int) -> None:
        """Record the request's first output.

        The replica's reports contain the request now, and its prompt is computed.
        """
        self._unreported.pop(request, None)
        if reservation := self._reservations.get(request):
            reservation.started = True

    def release(self, request: int) -> None:
        """Record the end of the request, of any kind. A second call changes nothing."""
        self._unreported.pop(request, None)
        self._reservations.pop(request, None)

    def update(self, report: replica_pb2.Load) -> None:
        self.report = report
        self._fleet.report(report)
        steps = report.steps_total
        for request in [key for key, each in self._unreported.items() if each.counted_at_step <= steps]:
            del self._unreported[request]

    def forget(self) -> None:
        """Forget the report, because the stream is gone. The next report may come from another engine."""
        self.report = None

    def view(self, *, trusted: bool) -> LoadView:
        """Return the load. Without ``trusted`` or without a report, count only this router's own requests there."""
        report = self.report
        fleet = self._fleet
        if report is None or not trusted:
            reservations = self._reservations.values()
            return LoadView(
                known=False,
                queued_tokens=sum(each.uncached_tokens for each in reservations if not each.started),
                num_requests=len(reservations),
                num_decoding=len(reservations),
                prefill_tokens_per_s=fleet.prefill_tokens_per_s or DEFAULT_PREFILL_TOKENS_PER_S,
                decode_step_s=fleet.decode_step_s,
                kv_blocks=report.kv_blocks if report is not None else 0,
                kv_blocks_used=sum(each.blocks for each in reservations),
            )
        unreported = self._unreported.values()
        return LoadView(
            known=True,
            queued_tokens=report.waiting_uncached_tokens
            + report.running_prefill_tokens
            + sum(each.uncached_tokens for each in unreported),
            num_requests=report.num_requests_running + report.num_requests_waiting + len(unreported),
            num_decoding=report.num_requests_running,
            prefill_tokens_per_s=report.prefill_tokens_per_s
            or fleet.prefill_tokens_per_s
            or DEFAULT_PREFILL_TOKENS_PER_S,
            decode_step_s=report.decode_step_s or fleet.decode_step_s,
            kv_blocks=report.kv_blocks,
            kv_blocks_used=report.kv_blocks_pinned + sum(each.blocks for each in unreported),
        )


def _smooth(old: float, new: float) -> float:
    if not new:
        return old
    return old + SMOOTHING * (new - old) if old else new
