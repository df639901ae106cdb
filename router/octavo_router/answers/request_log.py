"""Facts about an ended request, and their line in the log."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from octavo_api.errors import RequestError
from octavo_api.sampling import SamplingParams
from octavo_api.v1 import replica_pb2
from octavo_router.routing.route import Route

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """Facts that metrics and the log need. ``seconds`` is the time since the request's arrival.

    ``error`` is the error that ended the request, if one did.
    """

    request_id: str
    sampling: SamplingParams
    finish_reasons: Sequence[str]
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    route: Route | None
    timing: replica_pb2.Timing | None
    error: Exception | None


def log_end(request: EndedRequest) -> None:
    """Log one line. It holds neither the prompt nor the answer."""
    if not logger.isEnabledFor(logging.INFO):
        return
    route, timing = request.route, request.timing
    on = f"on {route.replica} ({route.reason})" if route is not None else "without a replica"
    steps = "" if timing is None else f"; queued {timing.queue_s:.3f}, prefill {timing.prefill_s:.3f} s"
    preempted = f", preempted {timing.num_preemptions} times" if timing is not None and timing.num_preemptions else ""
    logger.info(
        "request ended: %s %s after %.3f s, prompt %d tokens (%d cached), output %d%s%s%s",
        "/".join(request.finish_reasons),
        on,
        request.seconds,
        request.prompt_tokens,
        request.cached_tokens,
        request.completion_tokens,
        steps,
        preempted,
        "" if request.error is None else f": {_named(request.error)}",
        extra={"request_id": request.request_id},
    )


def _named(error: Exception) -> str:
    name = type(error).__name__
    return f"{name}: {error.message}" if isinstance(error, RequestError) else name
