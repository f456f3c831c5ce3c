"""Calls of tools by a list in JSON: the grammar of an answer that may be one, and its parser.

It serves models that were not trained to call tools, which are told of the form in the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

import msgspec

from parallax_core.contracts.grammar import Grammar
from parallax_core.contracts.parser import Content, Parser, Piece
from parallax_core.server.forced_calls import HEAD, ForcedCallParser, make_list_schema

TEXT = r"/([^\[ \n]|\[[^{\[ \n])(.|\n)*/"
"""An answer that calls nothing, after white space: a list of calls begins with ``[{``."""
BEGIN = '[{"name":'
"""The beginning of a list of calls, without white space."""
MOST_HELD = 1000
"""The most characters before the arguments of the first call."""


def make_list_grammar(schemas: Mapping[str, str], *, allows_many: bool, answer: str = "") -> Grammar:
    """Return the grammar of an answer that may be a list of calls.

    Args:
        schemas: of the arguments, as JSON text, by the name of the tool.
        allows_many: whether there may be several calls.
        answer: the JSON schema of an answer that calls nothing; empty: it is any text.
    """
    lines = [
        _write_calls(schemas, allows_many=allows_many),
        "start: space " + ("(answer | calls)" if answer else "(TEXT? | calls)"),
        "space: /[ \\n]{1,4}/?",
        write_answer(answer) if answer else f"TEXT: {TEXT}",
    ]
    return Grammar(kind="lark", source="\n".join(lines))


def replace_schemas(grammar: Grammar, schemas: Mapping[str, str], *, allows_many: bool) -> Grammar:
    """Return such a grammar with other schemas."""
    _, _, rest = grammar.source.partition("\n")
    return msgspec.structs.replace(grammar, source=f"{_write_calls(schemas, allows_many=allows_many)}\n{rest}")


def _write_calls(schemas: Mapping[str, str], *, allows_many: bool) -> str:
    """Return the rule of a list of calls, which is one line."""
    return f"calls: %json {json.dumps(make_list_schema(schemas, allows_many=allows_many))}"


def write_answer(answer: str) -> str:
    """Return the rule of an answer with a JSON schema; options for its compiler are not the client's."""
    schema = {name: value for name, value in json.loads(answer).items() if name != "x-guidance"}
    return f"answer: %json {json.dumps(schema)}"


class ListedCallParser(ForcedCallParser):
    """Reads an answer that may be a list of calls."""

    def __init__(self, inner: Parser, names: Collection[str]) -> None:
        """Read calls of the tools ``names`` from the content that ``inner`` finds."""
        super().__init__(inner, "")
        self._names = names
        self._is_text = False

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
