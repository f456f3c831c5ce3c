"""One request, as the head sees it from arrival to end: its answers, and what they yield together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from parallax_core.contracts.engine import Delta, Finish, Reason, Request, TokenLogprob
from parallax_core.contracts.stage import Answer, Drawn, Scored
from parallax_core.engine.sequence import Sequence, Task


class Job:
    """The answers to one request: the first from its arrival, the others from the draw that ends the prompt."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.answers: list[Sequence] = []
        self.answers.append(Sequence(task, self.answers, ready_since=task.arrived))

    @property
    def request(self) -> Request:
        """What was asked."""
        return self.task.request

    @property
    def arrived(self) -> float:
        """When it came."""
        return self.task.arrived

    @property
    def deadline(self) -> float | None:
        """When its time is over."""
        timeout = self.request.timeout_s
        return None if timeout is None else self.arrived + timeout

    @property
    def live(self) -> list[Sequence]:
        """The answers that go on."""
        return [answer for answer in self.answers if not answer.ended]

    @property
    def running(self) -> list[Sequence]:
        """Those of them that the stages hold."""
        return [answer for answer in self.answers if answer.seq is not None]

    def absorb(self, sequence: Sequence, answers: Iterable[Answer], now: float) -> Iterator[Delta]:
        """Take what a row of ``sequence`` gave; yield what the client gets to see of it."""
        for answer in answers:
            match answer:
                case Scored() if sequence.score is not None:
                    sequence.score.take(answer)
                case Drawn():
                    yield from self._advance(sequence, answer, now)

    def fail(self, message: str, reason: Reason = "error") -> Delta:
        """Return the terminal delta of a request that could not be finished."""
        return Delta(finish=self._finish(reason, message))

    def _advance(self, sequence: Sequence, drawn: Drawn, now: float) -> Iterator[Delta]:
        is_first = not sequence.num_output
        branches = [Sequence(self.task, self.answers, choice) for choice in range(1, len(drawn.tokens))]
        self.answers += branches
        for index, answer in enumerate((sequence, *branches)):
            answer.ready_since = now
            delta = answer.advance(drawn.tokens[index], _read_logprob(drawn, index))
            if is_first and answer.score is not None:
                delta = replace(delta, prompt_logprobs=answer.score.read())
            if delta.ended and not self.live:
                delta = replace(delta, finish=self._finish(delta.ended))
            yield delta

    def _finish(self, reason: Reason, message: str = "") -> Finish:
        first = self.answers[0]
        return Finish(
            reason=reason,
            prompt_tokens=first.num_prompt,
            output_tokens=sum(answer.num_output for answer in self.answers),
            message=message,
            cached_tokens=first.num_cached or 0,
        )


def _read_logprob(drawn: Drawn, index: int) -> tuple[TokenLogprob, ...]:
    """Return what is known of one of several tokens drawn at one place."""
    if not drawn.logprobs:
        return ()
    return (TokenLogprob(drawn.tokens[index], drawn.logprobs[index], drawn.top),)
