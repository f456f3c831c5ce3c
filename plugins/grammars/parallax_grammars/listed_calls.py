"""Reads calls of tools by a list in JSON; see `AskedAnswer`.

Models write it that were not trained to call tools, and are told of the form in the prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from parallax_core.api import Content, Parser, Piece
from parallax_grammars.forced_calls import HEAD, ForcedCallParser

BEGIN = '[{"name":'
"""The beginning of a list of calls, without white space."""
MOST_HELD = 1000
"""The most characters before the arguments of the first call."""


class ListedCallParser(ForcedCallParser):
    """Reads an answer that may be a list of calls."""

    def __init__(self, inner: Parser, names: Collection[str]) -> None:
        """Read calls of the tools ``names`` from the content that ``inner`` finds."""
        super().__init__(inner, "")
        self._names = names
        self._is_text = False

    def finish(self) -> Sequence[Piece]:
        """See `Parser.finish`; a list that was cut off before its first call is no text."""
        return [piece for piece in super().finish() if not is_begun_list(piece)]

    def _read(self, pieces: Sequence[Piece]) -> list[Piece]:
        found: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Content) and not self._is_text and not self._num_calls:
                self._is_text = not self._may_call(self._text + piece.text)
                if self._is_text:
                    piece, self._text = Content(self._text + piece.text), ""  # noqa: PLW2901
            found += [piece] if self._is_text else super()._read([piece])
        return found

    def _may_call(self, text: str) -> bool:
        """Return whether an answer that begins with ``text`` may be a list of calls."""
        if not BEGIN.startswith(_read_begin(text)):
            return False
        head = HEAD.match(text)
        return head[1] in self._names if head else len(text) < MOST_HELD


def is_begun_list(piece: Piece) -> bool:
    """Return whether the last piece of an answer is a list of calls that was cut off before the first one."""
    begin = _read_begin(piece.text) if isinstance(piece, Content) else ""
    return len(begin) > 1 and BEGIN.startswith(begin)


def _read_begin(text: str) -> str:
    """Return the beginning of a text without white space, as long as that of a list of calls."""
    return "".join(text[:MOST_HELD].split())[: len(BEGIN)]
