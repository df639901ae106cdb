"""The lifecycle of requests: their choices gain tokens, fork and end, and outputs report it."""

from collections import abc

from octavo_api.errors import DeadlineExceeded, RequestError
from octavo_api.finish_reason import FinishReason
from octavo_engine.core.plan import Logprobs, Sampled
from octavo_engine.core.request import RequestOutput
from octavo_engine.core.scheduling.scheduler import Scheduler
from octavo_engine.core.state.removable_heap import RemovableHeap
from octavo_engine.core.state.sequence import Request, Sequence
from octavo_engine.core.state.stopping import Finish

_SMOOTHING = 0.2


class Lifecycle:
    """All requests that have not ended. ``end`` is the one way out, so that each choice ends exactly once.

    A request's leader computes the prompt. Choices fork from it when their first tokens are sampled. Until then it
    continues, even if its own choice has ended.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.requests: dict[abc.Hashable, Request] = {}
        self.outputs: list[RequestOutput] = []
        self.now = 0.0
        self.num_generated_tokens = 0
        self.seconds_per_end = 0.0
        """Smoothed seconds between ends of requests, which each free a place in the queue."""
        self._scheduler = scheduler
        self._deadlines: RemovableHeap[tuple[float, int]] = RemovableHeap()
        """Deadline and arrival of each request that has a deadline."""
        self._by_arrival: dict[int, Request] = {}
        self._last_end: float | None = None

    def begin(self, request: Request) -> None:
        self.requests[request.id] = request
        if request.deadline is not None:
            self._deadlines.push((request.deadline, request.arrival))
            self._by_arrival[request.arrival] = request
        self._scheduler.enqueue(request.leader)

    def append(self, seq: Sequence, sampled: Sampled) -> None:
        """Append the sampled token to a sequence, and end its choice if the token was the last."""
        request, token_id = seq.request, sampled.token_id
        seq.tokens.append(token_id)
        self.num_generated_tokens += 1
        if request.first_token_at is None:
            request.first_token_at = self.now
        logprobs = () if sampled.logprobs is None else (sampled.logprobs,)
        finish = request.stop.check(token_id, len(seq.tokens) - seq.prompt_len)
        if finish is None:
            self._emit(request, seq.choice, (token_id,), logprobs)
        else:
            self.end(request, seq.choice, finish, token_ids=(token_id,), logprobs=logprobs)

    def fork(self, leader: Sequence, sampled: Sampled) -> None:
        """Make a choice a sequence of its own, with its first sampled token."""
        request = leader.request
        fork = leader.fork(sampled.choice)
        request.sequences[fork.choice] = fork
        leader.pending_forks = _without(leader.pending_forks, fork.choice)
        self.append(fork, sampled)
        if fork.choice in request.sequences:
            self._scheduler.start_fork(leader, fork)
        self._drop_idle(leader)

    def append_prompt_logprobs(self, request: Request, first: int, entries: tuple[Logprobs, ...]) -> None:
        """Output the entries of prompt positions from ``first``.

        Entries that were output before a preemption are left out.
        """
        due = entries[request.next_prompt_logprob - first :]
        request.next_prompt_logprob += len(due)
        if due and 0 in request.sequences:
            self._emit(request, 0, prompt_logprobs=due)

    def end(
        self,
        request: Request,
        choice: int,
        finish: Finish,
        *,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[Logprobs, ...] = (),
        error: RequestError | None = None,
    ) -> None:
        """End a choice that has not ended, in any state."""
        leader = request.leader
        seq = request.sequences.pop(choice, None)
        if seq is None:
            leader.pending_forks = _without(leader.pending_forks, choice)
        elif seq is leader:
            leader.choices = ()
        else:
            self._scheduler.remove(seq)
        self._drop_idle(leader)
        last = not request.live_choices
        if last:
            self._forget(request)
        self._emit(request, choice, token_ids, logprobs, finish=finish, error=error, last=last)

    def fail(self, request: Request, error: RequestError) -> None:
        """End all remaining choices with ``error``."""
        for choice in request.live_choices:
            self.end(request, choice, Finish(FinishReason.ERROR), error=error)

    def expire(self) -> None:
        """End the requests whose deadline has passed."""
        while (first := self._deadlines.first()) is not None and first[0] <= self.now:
            deadline, arrival = first
            request = self._by_arrival[arrival]
            state = "queued" if request.admitted_at is None else "running"
            allowed = deadline - request.arrived_at
            self.fail(request, DeadlineExceeded(f"deadline: {allowed:.3g} s after arrival, passed while {state}"))

    def take_outputs(self) -> list[RequestOutput]:
        outputs, self.outputs = self.outputs, []
        return outputs

    def _drop_idle(self, leader: Sequence) -> None:
        if not leader.choices and not leader.pending_forks:
            self._scheduler.remove(leader)

    def _forget(self, request: Request) -> None:
        """Drop every reference to the request, so that its memory is free at once and not at the next collection."""
        del self.requests[request.id]
        if request.deadline is not None:
            del self._by_arrival[request.arrival]
            self._deadlines.discard((request.deadline, request.arrival))
        request.release_leader()
        if self._last_end is not None:
            self.seconds_per_end += _SMOOTHING * (self.now - self._last_end - self.seconds_per_end)
        self._last_end = self.now

    def _emit(
        self,
        request: Request,
        choice: int,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[Logprobs, ...] = (),
        prompt_logprobs: tuple[Logprobs, ...] = (),
        finish: Finish | None = None,
        error: RequestError | None = None,
        last: bool = False,
    ) -> None:
        cached_tokens, request.unreported_cached_tokens = request.unreported_cached_tokens, None
        self.outputs.append(
            RequestOutput(
                request.id,
                choice,
                token_ids,
                logprobs,
                prompt_logprobs,
                None if finish is None else finish.reason,
                None if finish is None else finish.stop_token_id,
                cached_tokens,
                error,
                request.timing(self.now) if last else None,
            )
        )


def _without(choices: tuple[int, ...], choice: int) -> tuple[int, ...]:
    return tuple([other for other in choices if other != choice])
