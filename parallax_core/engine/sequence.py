"""One request, as the head sees it from arrival to end."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax_core.base.ids import SeqId
from parallax_core.contracts.engine import Delta, Finish, Reason, Request
from parallax_core.contracts.stage import Draw, Row, SequenceSpec
from parallax_core.engine.detokenizer import Decode, Detokenizer
from parallax_core.engine.stop import StopFilter

AGEING_S = 10.0
"""A request that has waited this long counts as one priority more urgent."""


@dataclass(slots=True)
class Sequence:
    """The tokens of a request so far, and how far the stages are with them."""

    request: Request
    max_output: int
    decode: Decode
    arrived: float
    seq: SeqId | None = None
    """The handle on the stages; None while the request waits. A request that was preempted gets a new one."""
    planned: int = 0
    """Tokens whose KV the stages hold once every step planned so far is done."""
    is_drawing: bool = False
    """Whether a step in flight draws the next token."""
    ready_since: float = 0.0
    tokens: list[int] = field(init=False)
    """The prompt, then what was drawn."""
    _detokenizer: Detokenizer = field(init=False)
    _stop: StopFilter = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self._detokenizer = Detokenizer(self.decode)
        self._stop = StopFilter(self.request.stop)

    @property
    def num_output(self) -> int:
        """Tokens drawn so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def is_ready(self) -> bool:
        """Whether a row of it could be in the next step."""
        return not self.is_drawing and self.seq is not None

    @property
    def num_missing(self) -> int:
        """Known tokens that no step planned so far computes: one for a decode, more for a prefill."""
        return len(self.tokens) - self.planned

    @property
    def spec(self) -> SequenceSpec:
        """What the stages are told when the sequence is opened."""
        request = self.request
        return SequenceSpec(prompt_length=len(request.prompt), sampling=request.sampling, priority=request.priority)

    def urgency(self, now: float) -> float:
        """Return the priority with ageing taken off; lower is more urgent."""
        return self.request.priority - (now - self.arrived) / AGEING_S

    def make_row(self, count: int) -> Row:
        """Return the row of the next ``count`` missing tokens, and count them as planned."""
        assert self.seq is not None
        start, stop = self.planned, self.planned + count
        tokens = tuple(self.tokens[start:stop])
        self.planned = stop
        self.is_drawing = stop == len(self.tokens)
        return Row(self.seq, start, tokens, (Draw(count - 1),) if self.is_drawing else ())

    def advance(self, token: int) -> Delta:
        """Take a drawn token and return what the client gets to see of it."""
        self.is_drawing = False
        self.tokens.append(token)
        if token in self.request.stop_ids:
            return self._end("stop", token, self._stop.feed(self._detokenizer.finish()))
        text = self._stop.feed(self._detokenizer.feed(token))
        if self._stop.stopped:
            return self._end("stop", token, text)
        if self.num_output >= self.max_output:
            return self._end("length", token, text + self._stop.feed(self._detokenizer.finish()))
        return Delta(text=text, tokens=(token,))

    def fail(self, message: str) -> Delta:
        """Return the terminal delta of a request that could not be finished."""
        return Delta(finish=self._finish("error", message))

    def _end(self, reason: Reason, token: int, text: str) -> Delta:
        if self._stop.stopped:
            return Delta(text=text, tokens=(token,), finish=self._finish("stop"))
        return Delta(text=text + self._stop.finish(), tokens=(token,), finish=self._finish(reason))

    def _finish(self, reason: Reason, message: str = "") -> Finish:
        num_prompt = len(self.request.prompt)
        return Finish(reason=reason, prompt_tokens=num_prompt, output_tokens=self.num_output, message=message)
