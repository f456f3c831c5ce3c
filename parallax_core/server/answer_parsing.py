"""Separates content, reasoning and tool calls in chat answers."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence

from parallax_core.base.json_scan import JsonScan
from parallax_core.base.refs import Ref
from parallax_core.contracts.engine import Delta
from parallax_core.contracts.parser import AnswerInfo, Content, Informed, Parser, Piece, Reasoning, ToolCall
from parallax_core.models.grammars import find_library
from parallax_core.models.output_parser import OutputParser
from parallax_core.server.body_messages import ResponseForm

ID_LETTERS, ID_LENGTH = string.ascii_letters + string.digits, 9
"""Ids of calls: nine letters and digits, since Mistral's chat templates accept no others."""


def make_call_id() -> str:
    """Return a new id for a tool call."""
    return "".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH))


class PlainParser:
    """Finds nothing but content."""

    def feed(self, text: str) -> Sequence[Piece]:
        """See `Parser.feed`."""
        return [Content(text)] if text else []

    def finish(self) -> Sequence[Piece]:
        """See `Parser.finish`."""
        return []


def make_parser(parser: OutputParser | None, form: ResponseForm) -> Parser:
    """Return a parser for one answer to a request; ``parser`` is the model's, if any."""
    made: Parser = parser.make() if parser else PlainParser()
    optional: object = made
    has_own_calls = form.forced_call is None and not form.lists_calls
    if isinstance(optional, Informed):
        tools = form.tools if has_own_calls else {}
        optional.begin(AnswerInfo(prompt_end=form.prompt_end, tools=tools, calls_come_first=form.calls_come_first))
    if form.call_reader:
        reader: Ref[Callable[[Parser, str], Parser]] = Ref(form.call_reader)
        return reader.load()(made, form.forced_call or "")
    return made if has_own_calls else find_library().read_calls(made, form.forced_call, form.tools)


class AnswerParsing:
    """Parses one answer as it arrives, and counts the tokens of its reasoning.

    A token counts as reasoning if the text that it completes is reasoning, or a mark of reasoning before any content.
    """

    def __init__(self, parser: OutputParser | None, form: ResponseForm) -> None:
        self._parser = make_parser(parser, form)
        self._allows_many = form.allows_many_calls
        self._is_forced = form.forced_call is not None
        self._num_undecided = 0
        self._is_reasoning = False
        self._is_cut = False
        self.num_reasoning = 0
        """Tokens of the reasoning."""
        self.has_calls = False
        self._arguments = JsonScan()
        self._is_whole = False

    @property
    def ends_with_calls(self) -> bool:
        """Whether it calls tools and the last call is whole: nothing has cut it off."""
        return self.has_calls and self._is_whole

    def read(self, delta: Delta) -> list[Piece]:
        """Return the pieces that a delta completes, neighbours of one kind joined."""
        pieces = list(self._parser.feed(delta.text))
        if delta.ended:
            pieces += self._parser.finish()
        self._count(len(delta.tokens), pieces, has_ended=delta.ended is not None)
        return join(self._cut(pieces))

    def _count(self, num_tokens: int, pieces: Sequence[Piece], *, has_ended: bool) -> None:
        self._num_undecided += num_tokens
        if pieces:
            self._is_reasoning = isinstance(pieces[0], Reasoning)
        if pieces or has_ended:
            self.num_reasoning += self._num_undecided if self._is_reasoning else 0
            self._num_undecided = 0
            self._is_reasoning = bool(pieces) and isinstance(pieces[-1], Reasoning)

    def _cut(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return the pieces up to the end of the first call, if only one is allowed."""
        kept: list[Piece] = []
        for piece in pieces:
            self._is_cut |= not self._allows_many and self.has_calls and not _is_part(piece)
            self.has_calls |= isinstance(piece, ToolCall)
            is_begun_call = self._is_forced and isinstance(piece, Content)  # which was cut off before it had a name
            if not self._is_cut and not is_begun_call:
                kept.append(piece)
                self._follow(piece)
        return kept

    def _follow(self, piece: Piece) -> None:
        """Look for the end of the arguments of a call."""
        if not isinstance(piece, ToolCall):
            return
        if piece.name:
            self._arguments, self._is_whole = JsonScan(), False
        self._is_whole = self._is_whole or self._arguments.find_end(piece.arguments, 0) is not None


def _is_part(piece: Piece) -> bool:
    """Return whether a piece belongs to the first call."""
    return isinstance(piece, ToolCall) and piece.index == 0


def join(pieces: Sequence[Piece]) -> list[Piece]:
    """Return ``pieces`` with neighbours of one kind joined, so that a client gets fewer chunks."""
    joined: list[Piece] = []
    for piece in pieces:
        match (joined[-1] if joined else None, piece):
            case (Content(before), Content(text)):
                joined[-1] = Content(before + text)
            case (Reasoning(before), Reasoning(text)):
                joined[-1] = Reasoning(before + text)
            case (ToolCall(index, "", before), ToolCall(same, "", text)) if index == same:
                joined[-1] = ToolCall(index, "", before + text)
            case _:
                joined.append(piece)
    return joined


def continues(piece: Piece, kind: type[Piece]) -> bool:
    """Return whether a piece belongs to a part that a piece of this kind has begun: a call begins with its name."""
    return isinstance(piece, kind) and not (isinstance(piece, ToolCall) and piece.name)


def read_text(piece: Piece) -> str:
    """Return the text of a piece: for a tool call, of its arguments."""
    return piece.arguments if isinstance(piece, ToolCall) else piece.text
