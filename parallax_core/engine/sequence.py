"""One running request, as the head sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax_core.base.ids import SeqId
from parallax_core.contracts.engine import Delta, Finish, Reason, Request
from parallax_core.contracts.stage import Draw, Row
from parallax_core.engine.detokenizer import Decode, Detokenizer
from parallax_core.engine.stop import StopFilter


@dataclass(slots=True)
class Sequence:
    """The tokens of a request so far, and how many of them the stage holds."""

    request: Request
    seq: SeqId
    max_output: int
    decode: Decode
    computed: int = 0
    """Tokens whose KV the stage holds."""
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

    def next_row(self, budget: int) -> Row:
        """Return the next row: as many of the tokens not yet computed as ``budget`` allows."""
        stop = min(len(self.tokens), self.computed + budget)
        chunk = tuple(self.tokens[self.computed : stop])
        outputs = (Draw(len(chunk) - 1),) if stop == len(self.tokens) else ()
        return Row(self.seq, self.computed, chunk, outputs)

    def advance(self, token: int) -> Delta:
        """Take a drawn token and return what the client gets to see of it."""
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
