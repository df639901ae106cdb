"""Log of a request: one line after its end, with the facts that an operator asks for first."""

import logging
from typing import TYPE_CHECKING

from octavo_api.errors import RequestError

if TYPE_CHECKING:
    from octavo_router.answers.generation import Generation

logger = logging.getLogger(__name__)


def ended(generation: "Generation", seconds: float, error: Exception | None) -> None:
    """Log the end of a request. Neither prompt nor answer is written.

    ``seconds`` is the time since its arrival. ``error`` is the one of ``Generation.aclose``.
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    route, timing = generation.route, generation.timing
    on = f"on {route.replica} ({route.reason})" if route is not None else "without a replica"
    steps = "" if timing is None else f"; queued {timing.queue_s:.3f}, prefill {timing.prefill_s:.3f} s"
    preempted = f", preempted {timing.num_preemptions} times" if timing is not None and timing.num_preemptions else ""
    logger.info(
        "request ended: %s %s after %.3f s, prompt %d tokens (%d cached), output %d%s%s%s",
        "/".join(generation.finish_reasons),
        on,
        seconds,
        len(generation.prompt_token_ids),
        generation.cached_tokens or 0,
        generation.completion_tokens,
        steps,
        preempted,
        "" if error is None else f": {_named(error)}",
        extra={"request_id": generation.call.request_id},
    )


def _named(error: Exception) -> str:
    name = type(error).__name__
    return f"{name}: {error.message}" if isinstance(error, RequestError) else name
