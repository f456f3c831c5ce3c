"""The state of one request in the head, from arrival to end: its answers and their deltas."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Listing
from dataclasses import replace
from functools import partial

from parallax_core.base.errors import BackendFailed
from parallax_core.contracts.engine import Delta, Finish, Reason, Request, TokenLogprob
from parallax_core.contracts.stage import Answer, Drawn, Scored, State
from parallax_core.contracts.tensor import Tensor
from parallax_core.engine.sequence import RequestContext, Sequence

OUTGROWN = "a stage was lost, and the pipeline that replaced it has no room for the rest of this answer"


class RequestState:
    """The answers to one request: the first exists from its arrival, the others from the draw after the prompt."""

    def __init__(self, context: RequestContext) -> None:
        self.context = context
        self.request: Request = context.request
        self.arrived = context.timeline.arrived
        self.answers: list[Sequence] = []
        self.answers.append(Sequence(context, self.answers, ready_since=context.timeline.arrived))
        self.live = [*self.answers]
        """The answers that have not ended."""
        self.num_losses = 0
        """Losses of a stage, since its last token, while it was on the stages."""
        if self.request.delivered:
            self._resume(self.request.delivered)

    @property
    def has_begun(self) -> bool:
        """Whether a token was drawn for it."""
        return self.answers[0].num_output > 0

    @property
    def deadline(self) -> float | None:
        """The time at which its timeout passes, on the head's clock; None without a timeout."""
        timeout = self.request.timeout_s
        return None if timeout is None else self.arrived + timeout - self.request.waited_s

    @property
    def running(self) -> list[Sequence]:
        """The answers that are on the stages."""
        return [answer for answer in self.answers if answer.seq is not None]

    def pause(self, now: float, *, is_loss: bool) -> None:
        """Note that the stages are opened again, and whether that is because one was lost."""
        self.context.timeline.pause(now)
        self.num_losses += is_loss and bool(self.running)

    def absorb(
        self, sequence: Sequence, answers: Iterable[Answer], tensors: Listing[Tensor], now: float
    ) -> list[Delta]:
        """Process the answers to a row of ``sequence``, which refer to ``tensors``; return the client's deltas.

        The request fails if a token cannot be turned into text.
        """
        deltas: list[Delta] = []
        for answer in answers:
            if isinstance(answer, Drawn):
                try:
                    for index, branch in enumerate(self._branch(sequence, len(answer.tokens))):
                        deltas.append(self._advance(branch, answer, index, now))
                except BackendFailed as error:
                    return [*deltas, self.fail(error.message)]
            elif isinstance(answer, Scored) and sequence.score is not None:
                sequence.score.take(answer)
            elif isinstance(answer, State) and sequence.embedding is not None:
                sequence.embedding.take(tensors[answer.tensor])
        return deltas

    def limit_output(self, most: int) -> None:
        """Limit each answer to ``most`` tokens, since the stages have less room than before."""
        if most < self.context.max_output:
            self.context.max_output = most
            self.context.is_cut = self.request.max_tokens is not None

    def fail(self, message: str, reason: Reason = "error", param: str = "") -> Delta:
        """Return the final delta of a request that fails; ``param``: its field at fault, if any."""
        return Delta(finish=self._finish(reason, message, param))

    def expire(self, now: float, message: str = "") -> Delta:
        """Return the final delta of a request whose time is over: its timeout, or the time of a recovery."""
        self.context.timeline.resume(now)
        return self.fail(message or f"timed out after {self.request.timeout_s:g} seconds", "timeout")

    def _resume(self, delivered: tuple[tuple[int, ...], ...]) -> None:
        """Bring each answer to where its client is, as if it had been preempted there."""
        self._branch(self.answers[0], len(delivered))
        for answer, tokens in zip(self.answers, delivered, strict=True):
            answer.is_over = answer.choice in self.request.ended
            for token in tokens:
                if answer.advance(token, ()).ended is not None and not answer.is_over:
                    answer.is_over = True
                    break
        self.live = [answer for answer in self.answers if not answer.is_over]

    def _advance(self, sequence: Sequence, drawn: Drawn, index: int, now: float) -> Delta:
        """Add the token at ``index`` of those drawn at one position to its answer."""
        self.context.timeline.advance(now)
        self.num_losses = 0
        is_first = not sequence.num_output
        sequence.ready_since = now
        timer = self.context.timer
        begun = timer()
        delta = sequence.advance(drawn.tokens[index], _read_logprob(drawn, index))
        self.context.timeline.detokenize_s += timer() - begun
        if is_first and sequence.score is not None:
            delta = replace(delta, prompt_logprobs=sequence.score.read())
        if is_first and sequence.embedding is not None:
            delta = replace(delta, embedding=sequence.embedding.read())
        if delta.ended == "length" and self.context.is_cut:
            return replace(delta, ended=None, finish=self._finish("error", OUTGROWN))
        if delta.ended is not None:
            sequence.is_over = True
            self.live.remove(sequence)
            delta = delta if self.live else replace(delta, finish=self._finish(delta.ended))
        return delta

    def _branch(self, sequence: Sequence, num_tokens: int) -> list[Sequence]:
        """Return the answers that take ``num_tokens`` tokens drawn at one position: ``sequence``, and new ones."""
        if num_tokens == 1:
            return [sequence]
        make = partial(Sequence, self.context, self.answers, ready_since=sequence.ready_since)
        branches = [make(choice=choice) for choice in range(1, num_tokens)]
        self.answers += branches
        self.live += branches
        return [sequence, *branches]

    def _finish(self, reason: Reason, message: str = "", param: str = "") -> Finish:
        first = self.answers[0]
        return Finish(
            reason=reason,
            prompt_tokens=first.num_prompt,
            output_tokens=sum(answer.num_output for answer in self.answers),
            message=message,
            param=param,
            cached_tokens=first.num_cached or 0,
            timing=self.context.timeline.read(),
        )


def find_last(states: Iterable[RequestState]) -> RequestState | None:
    """Return the newest request that is on the stages, else the newest that could be; None if there is neither."""
    able = [state for state in states if not state.context.is_held]
    holders = [state for state in able if state.running]
    return max(reversed(holders or able), key=lambda state: state.arrived, default=None)


def _read_logprob(drawn: Drawn, index: int) -> tuple[TokenLogprob, ...]:
    """Return the log-probability of the token at ``index``, or an empty tuple if it was not requested."""
    if not drawn.logprobs:
        return ()
    return (TokenLogprob(drawn.tokens[index], drawn.logprobs[index], drawn.top),)
