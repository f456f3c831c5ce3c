"""The state of one answer to a request: its tokens, its text, and its progress on the stages."""

from __future__ import annotations

from collections.abc import Sequence as Listing
from dataclasses import dataclass, field

from parallax_core.base.ids import SeqId
from parallax_core.contracts.engine import Delta, Reason, Request, TokenLogprob
from parallax_core.contracts.grammar import CompiledGrammar
from parallax_core.contracts.stage import Draw, Output, Row, SequenceSpec
from parallax_core.engine.answer_grammar import AnswerGrammar
from parallax_core.engine.answer_text import AnswerText
from parallax_core.engine.detokenizer import Decode
from parallax_core.engine.header_budget import RowCost, make_spec, weigh_rows
from parallax_core.engine.mask_budget import MaskBudget
from parallax_core.engine.prefix import ITEM, make_key
from parallax_core.engine.prompt_embedding import PromptEmbedding
from parallax_core.engine.prompt_logprobs import PromptScore
from parallax_core.engine.timing import Timeline, Timer, stand_still

UrgencyRank = tuple[float, float, int, int]
"""A sort key, unique among the sequences of a head; see `Sequence.rank`."""

AGEING_S = 10.0
"""A request that has waited this long counts as one priority more urgent."""


@dataclass(eq=False, kw_only=True, slots=True)
class RequestContext:
    """The data that all answers to a request share."""

    request: Request
    max_output: int
    """The most tokens an answer may have."""
    is_cut: bool = False
    """Whether ``max_output`` is less than the request asked for, since rebuilt stages hold less."""
    decode: Decode
    timeline: Timeline
    timer: Timer = stand_still
    number: int = 0
    """The request's number in the order of arrival at the head."""
    grammar: CompiledGrammar | None = None
    """The request's grammar; None without one, or while it is compiled."""
    masks: MaskBudget = field(default_factory=MaskBudget)
    """The time that its masks have taken."""
    spec: SequenceSpec = field(init=False)
    """The spec with which a sequence is opened on the stages."""
    cost: RowCost = field(init=False)
    """The bytes that the rows take in frames."""

    def __post_init__(self) -> None:
        self.spec, self.cost = make_spec(self.request), weigh_rows(self.request)

    @property
    def is_held(self) -> bool:
        """Whether the request waits until its grammar is compiled."""
        return self.request.grammar is not None and self.grammar is None


@dataclass(eq=False, slots=True)
class Sequence:
    """The prompt and the tokens drawn so far of one answer, and their progress on the stages.

    All answers to a request share one copy of the prompt.
    """

    context: RequestContext
    siblings: Listing[Sequence] = ()
    """All started answers to the request, this one included, in order."""
    choice: int = 0
    """The index of the answer: part of the key of every draw, so that computing it again draws the same tokens."""
    seq: SeqId | None = None
    """The handle on the stages; None while it waits. A sequence that was preempted gets a new one."""
    planned: int = 0
    """Tokens whose KV the stages hold after all planned steps."""
    is_drawing: bool = False
    """Whether a step in flight draws the next token."""
    ready_since: float = 0.0
    """The time at which it last became ready for a row, on the head's clock."""
    num_cached: int | None = None
    """The number of cached tokens when it was first admitted; None before that."""
    num_found: int | None = None
    """The number of cached tokens when it was shown to a scheduling policy as waiting; None: it was not."""
    request: Request = field(init=False)
    """The request that it answers."""
    num_prompt: int = field(init=False)
    """The number of tokens in the prompt."""
    is_over: bool = False
    """Whether the answer has ended."""
    rank: UrgencyRank = field(init=False)
    """Urgency (ageing changes it equally for all), then arrival; lower is served first."""
    output: list[int] = field(init=False, default_factory=list)
    """The tokens drawn so far."""
    mask: bytes | None = field(init=False, default=None)
    """Under a grammar: the tokens that may be drawn next; None: that is not known yet."""
    score: PromptScore | None = field(init=False, default=None)
    """The log-probabilities of the prompt, if requested; the first answer computes them."""
    embedding: PromptEmbedding | None = field(init=False, default=None)
    """The embedding of the prompt, if requested."""
    _grammar: AnswerGrammar | None = field(init=False, default=None)
    _key: bytes = field(init=False)
    """The cached key; may lack the latest tokens."""
    _text: AnswerText = field(init=False)

    def __post_init__(self) -> None:
        request = self.request = self.context.request
        self.num_prompt = len(request.prompt)
        since = self.arrived - request.waited_s
        self.rank = request.priority + since / AGEING_S, since, self.context.number, self.choice
        self._key = self.siblings[0].key(self.num_prompt) if self.siblings else b""
        if request.prompt_logprobs is not None and self.choice == 0 and not request.delivered:
            self.score = PromptScore(request.prompt, request.prompt_logprobs)
        if request.pooling is not None:
            self.embedding = PromptEmbedding(self.num_prompt, request.pooling)
        self._text = AnswerText(self.context.decode, request)

    @property
    def arrived(self) -> float:
        """The time at which the request arrived, on the head's clock."""
        return self.context.timeline.arrived

    @property
    def num_output(self) -> int:
        """The number of tokens drawn so far."""
        return len(self.output)

    @property
    def num_tokens(self) -> int:
        """The number of tokens in the prompt and drawn so far."""
        return self.num_prompt + len(self.output)

    @property
    def is_ready(self) -> bool:
        """Whether it can have a row in the next step."""
        return not self.is_drawing and self.seq is not None and self.can_draw

    @property
    def can_draw(self) -> bool:
        """Whether its next token may be drawn: under a grammar, once the mask for it is in hand."""
        return self.mask is not None or self.request.grammar is None

    @property
    def awaits_slow_mask(self) -> bool:
        """Whether its next token waits for a mask that may take long."""
        return not (self.is_drawing or self.can_draw or self.context.masks.is_quick)

    @property
    def is_waiting(self) -> bool:
        """Whether it can be admitted to the stages."""
        return self.seq is None and not self.is_drawing and not self.is_over

    @property
    def num_missing(self) -> int:
        """Known tokens that no planned step computes: one for a decode, more for a prefill."""
        return self.num_tokens - self.planned

    @property
    def num_reusable(self) -> int:
        """The most leading tokens whose KV may be reused: not the last token, nor any that is asked about."""
        most = self.num_tokens - 1
        for asked in (self.score, self.embedding):
            if asked is not None and not asked.is_asked:
                most = min(most, asked.num_asked)
        return most

    @property
    def num_begun(self) -> int:
        """The number of additional answers that its next draw begins."""
        return 0 if self.output else self.request.n - 1

    @property
    def draw_bytes(self) -> int:
        """The most bytes that its next draw takes in a result."""
        cost = self.context.cost
        return cost.next_draw if self.num_output else cost.first_draw

    def key(self, length: int) -> bytes:
        """Return the first ``length`` tokens as a key of `PrefixIndex`; each token is converted once."""
        if (known := len(self._key) // ITEM) < length:
            self._key += make_key(self.read(known, self.num_tokens))
        return self._key[: length * ITEM]

    def read(self, start: int, stop: int) -> tuple[int, ...]:
        """Return the tokens from ``start`` to ``stop``, counted from the beginning of the prompt."""
        prompt, behind = self.request.prompt, self.num_prompt
        if stop <= behind:
            return prompt[start:stop]
        drawn = self.output[max(0, start - behind) : stop - behind]
        return (*prompt[start:], *drawn) if start < behind else tuple(drawn)

    def urgency(self, now: float) -> float:
        """Return the priority with ageing taken off; lower is more urgent."""
        return self.request.priority - (now - self.arrived + self.request.waited_s) / AGEING_S

    def begin(self, seq: SeqId, length: int) -> None:
        """Start on the stages, which already hold the first ``length`` tokens."""
        self.seq, self.planned = seq, length
        if self.num_cached is None:
            self.num_cached = min(length, self.num_prompt)

    def restart(self) -> None:
        """Leave the stages, which were emptied; results in flight are discarded."""
        self.seq, self.planned, self.is_drawing = None, 0, False
        self._forget_steps()

    def take_back(self, start: int) -> None:
        """Undo the row from ``start`` on: its step failed and left the stages as they were before."""
        self.planned, self.is_drawing = start, False
        self._forget_steps()

    def make_row(self, count: int) -> Row:
        """Return the row of the next ``count`` missing tokens, and count them as planned."""
        assert self.seq is not None
        start, stop = self.planned, self.planned + count
        self.planned = stop
        self.is_drawing = stop == self.num_tokens
        outputs: tuple[Output, ...] = self.score.ask(start, stop) if self.score is not None else ()
        if self.embedding is not None:
            outputs = (*outputs, *self.embedding.ask(start, stop))
        if self.is_drawing:
            outputs = (*outputs, self._make_draw(count - 1))
        return Row(self.seq, start, self.read(start, stop), outputs)

    def find_grammar(self) -> AnswerGrammar:
        """Return its place in its grammar, which is compiled."""
        assert self.context.grammar is not None, "a request whose grammar is not compiled asks for no mask"
        if self._grammar is None:
            self._grammar = AnswerGrammar(self.context.grammar)
        return self._grammar

    def advance(self, token: int, logprobs: tuple[TokenLogprob, ...]) -> Delta:
        """Add a drawn token and return the delta for the client."""
        self.is_drawing, self.mask = False, None
        self.output.append(token)
        text, ended = self._read(token)
        stop_string = self._text.stop_string if ended == "stop" else ""
        return Delta(
            text=text, tokens=(token,), index=self.choice, logprobs=logprobs, ended=ended, stop_string=stop_string
        )

    def _forget_steps(self) -> None:
        """Discard what steps in flight were asked about the prompt: they will not answer."""
        for asked in (self.score, self.embedding):
            if asked is not None:
                asked.forget_steps()

    def _make_draw(self, offset: int) -> Draw:
        """Return the draw of a row; the first draw of a request begins all its answers."""
        request = self.request
        top = -1 if request.logprobs is None else request.logprobs
        return Draw(offset, 1 if self.num_output else request.n, top, request.grammar is not None)

    def _read(self, token: int) -> tuple[str, Reason | None]:
        """Return the text a token completes, and the reason if it ends the answer."""
        answer = self._text
        if token in self.request.stop_ids:
            return answer.finish(), "stop"
        text = answer.feed(token, is_exempt=self.num_output <= self.request.sampling.min_tokens)
        if answer.has_stopped:
            return text, "stop"
        if self.num_output >= self.context.max_output:
            text += answer.finish()
            return text, "stop" if self._text.has_stopped else "length"
        return text, None
