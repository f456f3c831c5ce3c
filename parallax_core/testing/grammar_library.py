"""The kit for libraries of grammars: masks hold answers to what a request asks for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.grammar import AskedAnswer, CompiledGrammar, Grammar, GrammarLibrary, ModelGrammars
from parallax_core.contracts.parser import AllowedAnswers, Content, Piece, ToolCall
from parallax_core.testing.parser import join_pieces
from parallax_core.testing.promise import broken, expect

MASK = "Return the tokens that may come next, one bit for each"
INVALID = "Return the grammar compiled; may take long, and is called on any thread."
JSON_CALLS = "a call is JSON that the server reads"
IN_FORMAT = "Makes that parser, which has begun an answer and may be a `GrammarWriter`"
LEFT_OUT = "The schema of a tool that is not strict may be left out if the grammar cannot be compiled with it."
READS = "Return the parser of an answer whose calls are JSON that the server reads"
CUT = "a list that was cut off before its first call is no text"
CHECKED = "Return a grammar that ``check`` has passed"
END = 0
"""The token that ends answers."""
LETTER = '{"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": false}'
RIGHT, WRONG = '{"a": "x"}', '{"a": "z"}'
LISTED = '[{"name": "spell", "arguments": %s}]'
KINDS: tuple[tuple[Grammar, str, str], ...] = (
    (Grammar(kind="json_object"), '{"b": 1}', "[]"),
    (Grammar(kind="json_schema", source=LETTER), RIGHT, WRONG),
    (Grammar(kind="regex", source="[ab]{2}"), "ab", "abc"),
    (Grammar(kind="choice", source='["yes", "no"]'), "no", "maybe"),
    (Grammar(kind="lark", source='start: "x" start | "y"'), "xxy", "x"),
    (Grammar(kind="choice", source='["yes"]', after=("</r>",), must_begin=True), "so</r>yes", "yes"),
)
"""Grammars, each with an answer that matches it and one that does not."""
ASKED = AskedAnswer(field="tools", tools={"spell": LETTER}, tool_fields={"spell": "tools.0"}, lists_calls=True)


class GoParser:
    """A parser of a format whose only call is ``go!``."""

    def feed(self, text: str) -> Sequence[Piece]:
        """See `Parser.feed`."""
        return [Content(text)]

    def finish(self) -> Sequence[Piece]:
        """See `Parser.finish`."""
        return []

    def write_grammar(self, allowed: AllowedAnswers) -> str:
        """See `GrammarWriter.write_grammar`."""
        return 'start: "go!"' if allowed.must_call else 'start: "go!" | "no"'


class GrammarLibraryConformance:
    """Holds a library to its contract, with a tokenizer in which every byte is a token.

    Subclass it in a test module under a name that begins with ``Test``, and give `make_library`.
    """

    def make_library(self) -> GrammarLibrary:
        """Return the library."""
        raise NotImplementedError

    def test_masks_allow_what_matches_a_grammar_alone(self, tmp_path: Path) -> None:
        """An answer of each kind of grammar passes, and another one does not."""
        model = Model(self.make_library(), tmp_path)
        for grammar, right, wrong in KINDS:
            model.check(grammar, right, wrong, MASK)

    def test_bad_grammar_is_refused(self, tmp_path: Path) -> None:
        """A schema that cannot be followed is the fault of the request."""
        model = Model(self.make_library(), tmp_path)
        with expect(InvalidRequest, "compiling a schema of an unknown type", INVALID):
            model.grammars.compile(Grammar(kind="json_schema", source='{"type": "text"}'))

    def test_forced_calls_are_the_arguments_or_a_list(self, tmp_path: Path) -> None:
        """A named tool is called by its arguments, and any tool by an item of a list."""
        model = Model(self.make_library(), tmp_path)
        for forced, form in (("spell", "%s"), ("", LISTED)):
            asked = change(ASKED, forced=forced)
            model.check(model.grammars.write_answer(asked).grammar, form % RIGHT, form % WRONG, JSON_CALLS)

    def test_model_without_a_format_lists_its_calls_or_answers(self, tmp_path: Path) -> None:
        """Beside tools, an answer is text, or has the form that the request asks for."""
        model = Model(self.make_library(), tmp_path)
        free = model.grammars.write_answer(ASKED).grammar
        form = model.grammars.write_answer(change(ASKED, grammar=Grammar(kind="json_object"))).grammar
        model.check(form, "{}", "No.", JSON_CALLS)
        for grammar, answer in ((free, "No."), (form, "{}")):
            model.check(grammar, answer, LISTED % WRONG, JSON_CALLS)
            model.check(grammar, LISTED % RIGHT, f"{LISTED % RIGHT} then", JSON_CALLS)

    def test_calls_in_json_are_read(self) -> None:
        """Calls are found however their text is cut, and other answers are text."""
        library = self.make_library()
        call = [ToolCall(0, "spell", RIGHT)]
        for forced, text, found in (
            ("spell", RIGHT, call),
            ("", LISTED % RIGHT, call),
            (None, LISTED % RIGHT, call),
            (None, "[No]", [Content("[No]")]),
        ):
            for size in (1, len(text)):
                parser = library.read_calls(GoParser(), forced, {"spell"})
                pieces = [piece for start in range(0, len(text), size) for piece in parser.feed(text[start:][:size])]
                read = join_pieces([*pieces, *parser.finish()])
                assert read == found, broken(f"{text!r} in parts of {size} is read as {read}", READS)

    def test_list_that_is_cut_off_is_no_text(self) -> None:
        """An answer may end anywhere."""
        parser = self.make_library().read_calls(GoParser(), None, {"spell"})
        left = [*parser.feed('[{"na'), *parser.finish()]
        assert not left, broken(f"it is read as {left}", CUT)

    def test_parser_writes_the_grammar_of_its_format(self, tmp_path: Path) -> None:
        """The library asks the parser of a format that knows its grammar."""
        model = Model(self.make_library(), tmp_path)
        asked = change(ASKED, lists_calls=False, make_parser=GoParser, may_force_calls=False)
        free, forced = change(asked, strict_tools=("spell",)), change(asked, forced="spell")
        model.check(model.grammars.write_answer(free).grammar, "no", "yes", IN_FORMAT)
        written = model.grammars.write_answer(forced)
        assert written.calls_in_format, broken("a forced call in the format is not said to be", IN_FORMAT)
        model.check(written.grammar, "go!", "no", IN_FORMAT)

    def test_bad_schema_is_left_out_unless_it_must_hold(self, tmp_path: Path) -> None:
        """A strict tool with a bad schema is refused by its field; another one is left out, and named."""
        library = self.make_library()
        model = Model(library, tmp_path)

        async def check(grammar: Grammar) -> None:
            model.grammars.compile(grammar)

        asked = change(ASKED, tools={"spell": '{"type": "object", "properties": {"a": {"type": "text"}}}'})
        asked = change(asked, grammar=model.grammars.write_answer(asked).grammar)
        mended, fields = asyncio.run(library.check_answer(asked, check))
        assert list(fields) == ["tools.0"], broken(f"the fields that are left out are {fields}", LEFT_OUT)
        model.check(mended, LISTED % RIGHT, f"{LISTED % RIGHT} then", CHECKED)
        with expect(InvalidRequest, "checking a strict tool with a bad schema", CHECKED) as caught:
            asyncio.run(library.check_answer(change(asked, strict_tools=("spell",)), check))
        param = caught.error.param if caught.error else None
        assert param == "tools.0", broken(f"the refusal names {param}", CHECKED)


def change(asked: AskedAnswer, **changes: Any) -> AskedAnswer:  # noqa: ANN401 -- fields of any type
    """Return what is asked for with other fields."""
    return AskedAnswer(**{**{name: getattr(asked, name) for name in AskedAnswer.__slots__}, **changes})


class Model:
    """The grammars of a small model, and its tokenizer."""

    def __init__(self, library: GrammarLibrary, folder: Path) -> None:
        letters = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
        self._tokenizer = Tokenizer(models.BPE(vocab={each: number for number, each in enumerate(letters)}, merges=[]))
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer.decoder = decoders.ByteLevel()
        self._tokenizer.add_special_tokens(["<end>"])
        self._tokenizer.save(str(folder / "tokenizer.json"))
        self.grammars: ModelGrammars = library.open_model(folder / "tokenizer.json", len(letters), [END])

    def check(self, grammar: Grammar, right: str, wrong: str, promise: str) -> None:
        """Fail unless a grammar allows ``right`` as a whole answer, and not ``wrong``."""
        compiled = self.grammars.compile(grammar)
        shown = json.dumps(grammar.source[:200])
        assert self._allows(compiled, right), broken(f"{right!r} is not allowed by {shown}", promise)
        assert not self._allows(compiled, wrong), broken(f"{wrong!r} is allowed by {shown}", promise)

    def _allows(self, compiled: CompiledGrammar, answer: str) -> bool:
        matcher = compiled.start()
        for token in (*self._tokenizer.encode(answer).ids, END):
            mask = matcher.find_mask([END], may_end=True)
            if not mask[token // 8] >> token % 8 & 1:
                return False
            if token != END:
                matcher.advance([token])
        return True
