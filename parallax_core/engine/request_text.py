"""Makes the text of a request whose engine gives only tokens, and ends its answers at stop strings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from parallax_core.contracts.engine import Delta, Finish, Reason, Request
from parallax_core.engine.answer_text import AnswerText
from parallax_core.engine.detokenizer import Decode


@dataclass(slots=True)
class AnswerState:
    """One answer to a request, so far."""

    text: AnswerText
    num_tokens: int = 0
    has_ended: bool = False


class RequestText:
    """Turns the deltas of a `TokenEngine` into those that a client gets.

    What an engine computes after a stop string is dropped and not counted.
    """

    def __init__(self, request: Request, decode: Decode) -> None:
        self._request = request
        self._answers = [AnswerState(AnswerText(decode, request)) for _ in range(request.n)]
        self._num_cached = 0

    def read(self, delta: Delta) -> Delta | None:
        """Return the delta with its text, or None if nothing of it is for the client.

        The returned delta has a finish if the request is over, though the engine may not know yet.
        """
        self._num_cached = max(self._num_cached, delta.cached_tokens)
        answer = self._answers[delta.index]
        if answer.has_ended and delta.finish is None:
            return None
        ended, given = (None, Delta(index=delta.index)) if answer.has_ended else self._advance(answer, delta)
        if delta.finish is not None:
            return replace(given, finish=self._close(delta.finish, ended))
        if ended is not None and all(each.has_ended for each in self._answers):
            return replace(given, finish=self.finish(ended))
        return given

    def finish(self, reason: Reason, message: str = "") -> Finish:
        """Return the finish of a request that ends here, with its usage."""
        return Finish(
            reason=reason,
            prompt_tokens=len(self._request.prompt),
            output_tokens=sum(answer.num_tokens for answer in self._answers),
            message=message,
            cached_tokens=self._num_cached,
        )

    def _close(self, finish: Finish, ended: Reason | None) -> Finish:
        """Return an engine's finish with the usage that the client sees; ``ended``: why the last answer has ended."""
        self._num_cached = max(self._num_cached, finish.cached_tokens)
        reason = ended if ended is not None and finish.reason in {"stop", "length"} else finish.reason
        return replace(self.finish(reason, finish.message), timing=finish.timing)

    def _advance(self, answer: AnswerState, delta: Delta) -> tuple[Reason | None, Delta]:
        """Add the tokens of a delta to its answer; return why that ends, and the delta with its text."""
        text, count = self._read(answer, delta.tokens)
        ended: Reason | None = "stop" if answer.text.has_stopped else delta.ended
        if ended is not None:
            answer.has_ended = True
            text += "" if answer.text.has_stopped else answer.text.finish()
            ended = "stop" if answer.text.has_stopped else ended
        if count < len(delta.tokens):
            delta = replace(delta, tokens=delta.tokens[:count], logprobs=delta.logprobs[:count])
        stop_string = answer.text.stop_string if ended == "stop" else ""
        return ended, replace(delta, text=text, ended=ended, stop_string=stop_string, finish=None, cached_tokens=0)

    def _read(self, answer: AnswerState, tokens: tuple[int, ...]) -> tuple[str, int]:
        """Return the text of tokens, and how many of them there are up to a stop string."""
        text, least = "", self._request.sampling.min_tokens
        for count, token in enumerate(tokens, 1):
            answer.num_tokens += 1
            if token in self._request.stop_ids:
                return text + answer.text.finish(), count
            text += answer.text.feed(token, is_exempt=answer.num_tokens <= least)
            if answer.text.has_stopped:
                return text, count
        return text, len(tokens)
