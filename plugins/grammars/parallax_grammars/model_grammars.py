"""Compiles grammars for a model's vocabulary with llguidance, and makes the masks of answers."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from parallax_core.api import BackendFailed, InvalidRequest, ParallaxError
from parallax_core.api.grammars import AskedAnswer, Grammar, WrittenGrammar, read_object
from parallax_grammar_tools.schema_refs import JsonSchema, localize_references
from parallax_grammars.answer_grammar import write_answer
from parallax_grammars.schema_keywords import drop_neutral, rewrite_schema
from parallax_grammars.source import translate_whole, unforce

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

MOST_STATES = 50_000
"""The most states of a grammar's lexer, of 1 to 2 kB each."""
MOST_ITEMS = 20_000
"""The most items of the parser for a mask, some 50 ms of a processor for an ambiguous grammar. A union of a thousand
objects needs more than half of them."""
SLOW_S = 0.001
"""Seconds of a mask after which the next token may take long, too: a mask tries all tokens."""
MOST_SHOWN = 300
"""The most characters of an error of llguidance that are shown."""
PROBE = b"a true text"
"""A text that a tokenizer must give back as it is."""
ANY = r"(.|\n)*"
"""A regular expression for any text."""


class LlguidanceGrammars:
    """Compiles grammars for one model; see `ModelGrammars`. The vocabulary is prepared for the first of them."""

    def __init__(self, file: Path, vocab_size: int, stop_ids: Iterable[int]) -> None:
        """Compile for the tokenizer in ``file``, whose answers end with one of ``stop_ids``."""
        self._file = file
        self._vocab_size = vocab_size
        self._stop_ids = sorted(stop_ids)
        self._lock = threading.Lock()
        self._special_texts: frozenset[str] = frozenset()
        """The texts of special tokens, and how JSON writes them; known with the vocabulary."""

    def prepare(self) -> None:
        """Prepare the vocabulary; see `ModelGrammars.prepare`."""
        with self._lock:
            _ = self._tokenizer

    def can_prepare(self) -> bool:
        """Prepare the vocabulary, and return whether that is possible with the model's tokenizer."""
        try:
            self.prepare()
        except ParallaxError:  # raised again for each grammar
            return False
        return True

    def compile(self, grammar: Grammar) -> TokenGrammar:
        """Return the grammar compiled; see `GrammarCompiler.compile`."""
        from llguidance import LLMatcher, LLParserLimits

        self.prepare()
        limits = LLParserLimits(max_lexer_states=MOST_STATES, step_max_items=MOST_ITEMS, verbose_errors=False)
        matcher = LLMatcher(self._tokenizer, self._translate(grammar), log_level=0, limits=limits)
        _check(matcher)
        mask = matcher.compute_bitmask()
        _check(matcher)
        if not any(mask):
            raise InvalidRequest("no text matches the grammar", "grammar")
        return TokenGrammar(matcher, self._follower, (self._vocab_size + 7) // 8, tuple(self._stop_ids))

    @cached_property
    def _follower(self) -> GrammarFollower:
        return GrammarFollower(self._tokenizer)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        content = read_object(self._file)
        self._special_texts = _list_special(content)
        try:
            source = msgspec.json.encode(_drop_prefix_space(content)).decode()
            tokenizer = LLTokenizer(source, n_vocab=self._vocab_size, eos_token=self._stop_ids or None)
        except ValueError as error:
            message = f"a grammar is not available: this model's tokenizer is of an unknown kind ({error})"
            raise InvalidRequest(message, "grammar", "use another model") from error
        if tokenizer.decode_bytes(tokenizer.tokenize_bytes(PROBE)) != PROBE:
            message = "a grammar is not available: this model's tokenizer changes the text that it is given"
            raise InvalidRequest(message, "grammar", "use another model")
        return tokenizer

    def _translate(self, grammar: Grammar) -> str:
        """Return a grammar in llguidance's own form."""
        whole = translate_whole(grammar)
        if any(text in grammar.source for text in self._special_texts):
            whole = unforce(whole)
        return self._begin_after(grammar.after, whole, must_begin=grammar.must_begin) if grammar.after else whole

    def _begin_after(self, triggers: Sequence[str], whole: str, *, must_begin: bool) -> str:
        """Return the grammar of free text, in which ``whole`` holds after the first of ``triggers``."""
        [part] = json.loads(whole)["grammars"]
        names = [self.find_special(trigger) for trigger in triggers]
        texts = [
            re.escape(trigger).replace("/", r"\/") for trigger, name in zip(triggers, names, strict=True) if not name
        ]
        free = " & ".join([f"/{ANY}/", *(f"~/{ANY}{text}{ANY}/" for text in texts)])
        lines = ["%llguidance {}", f"FREE: {free}", "begin: " + " | ".join(f"b{index}" for index in range(len(names)))]
        for index, (trigger, name) in enumerate(zip(triggers, names, strict=True)):
            lines.append(f"b{index}: FREE {name}" if name else f"b{index}[suffix={json.dumps(trigger)}]: /{ANY}/")
        lark = "\n".join([*lines, "start: begin @whole" if must_begin else "start: FREE | begin @whole"])
        return json.dumps({"grammars": [{"lark_grammar": lark}, {**part, "name": "whole"}]})

    def write_answer(self, asked: AskedAnswer) -> WrittenGrammar:
        """Return the grammar of answers; see `ModelGrammars.write_answer`."""
        return write_answer(asked, self)

    def simplify_schema(self, schema: JsonSchema) -> JsonSchema:
        """Return a schema with local references, without what asks for nothing."""
        simple: JsonSchema = rewrite_schema(localize_references(schema), drop_neutral)
        return simple

    def find_special(self, text: str) -> str:
        """Return the name in Lark of the special token that ``text`` stands for; empty if it stands for none."""
        self.prepare()
        tokens = self._tokenizer.tokenize_str(text, parse_special=True)
        return f"<[{tokens[0]}]>" if len(tokens) == 1 and self._tokenizer.is_special_token(tokens[0]) else ""


@dataclass(frozen=True, slots=True)
class TokenGrammar:
    """A compiled grammar; see `CompiledGrammar`."""

    matcher: LLMatcher
    """The matcher of an empty answer, which is only copied."""
    follower: GrammarFollower
    num_bytes: int
    """The bytes of a mask."""
    end_ids: tuple[int, ...]
    """The tokens that end an answer by the model's own configuration."""

    def start(self) -> TokenMatcher:
        """Return the matcher of an empty answer."""
        return TokenMatcher(self.matcher.deep_copy(), self)


class GrammarFollower:
    """Advances matchers by tokens without holding Python's interpreter lock for long.

    llguidance holds it while one matcher takes a token, which an ambiguous grammar can make hundreds of milliseconds,
    and releases it for several at once.
    """

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self._threads = threading.local()
        self._token = tokenizer.greedy_tokenize("a")[0]

    def advance(self, matcher: LLMatcher, tokens: Sequence[int]) -> bool:
        """Advance a matcher by tokens, one after another; return whether its grammar allows all of them."""
        other = self._second.deep_copy()
        for token in tokens:
            is_allowed, _ = self._executor.consume_token_par([(matcher, token), (other, self._token)])
            if not is_allowed:
                return False
        return True

    @property
    def _executor(self) -> LLExecutor:
        """A thread of llguidance for the one that asks, whose priority it has; started when it is first needed."""
        from llguidance import LLExecutor

        if not hasattr(self._threads, "executor"):
            self._threads.executor = LLExecutor(1)
        found: LLExecutor = self._threads.executor
        return found

    @cached_property
    def _second(self) -> LLMatcher:
        """A matcher beside the one that matters, which is only copied."""
        from llguidance import LLMatcher

        return LLMatcher(self._tokenizer, LLMatcher.grammar_from_regex(ANY), log_level=0)


@dataclass(slots=True)
class TokenMatcher:
    """The place of an answer in a grammar; see `Matcher`."""

    matcher: LLMatcher
    grammar: TokenGrammar
    is_slow: bool = False
    """Whether its latest mask took long, and so would the next token."""

    def advance(self, tokens: Sequence[int]) -> None:
        """Append tokens; see `Matcher.advance`."""
        if not tokens:
            return
        if self.is_slow or len(tokens) > 1:
            is_allowed = self.grammar.follower.advance(self.matcher, tokens)
        else:
            is_allowed = self.matcher.consume_token(tokens[0])
        if not is_allowed:
            raise BackendFailed(f"the grammar cannot be followed: {_explain(self.matcher)}")

    def find_mask(self, stop_ids: Collection[int], *, may_end: bool) -> bytes:
        """Return the tokens that may come next; see `Matcher.find_mask`."""
        begun = time.perf_counter()
        mask = bytearray(self.matcher.compute_bitmask()[: self.grammar.num_bytes])
        self.is_slow = time.perf_counter() - begun > SLOW_S
        if self.matcher.is_error():
            raise BackendFailed(f"the grammar cannot be followed: {_explain(self.matcher)}")
        for token in (*self.grammar.end_ids, *stop_ids):  # a client's stop token may be one that the grammar allows
            mask[token // 8] &= ~(1 << token % 8)
        can_go_on = any(mask)
        if self.matcher.is_accepting() and (may_end or not can_go_on):
            for token in stop_ids:
                mask[token // 8] |= 1 << token % 8
        elif not can_go_on:
            raise BackendFailed("the grammar allows no token here that does not end the answer")
        return bytes(mask)


def _list_special(tokenizer: dict[str, Any]) -> frozenset[str]:
    """Return the texts of the special tokens in a tokenizer.json, and how JSON writes them."""
    added = tokenizer.get("added_tokens") or []
    texts = [str(token["content"]) for token in added if token.get("special")]
    return frozenset([*texts, *(json.dumps(text)[1:-1] for text in texts)])


def _drop_prefix_space(part: Any) -> Any:  # noqa: ANN401 -- a part of tokenizer.json
    """Return a tokenizer that adds no space in front: llguidance tokenizes text from the middle of answers."""
    if isinstance(part, dict):
        changes = {"add_prefix_space": False} if part.get("type") == "ByteLevel" else {}
        kept = {name: value if name == "model" else _drop_prefix_space(value) for name, value in part.items()}
        return {**kept, **changes}
    return [_drop_prefix_space(each) for each in part] if isinstance(part, list) else part


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise InvalidRequest(f"the grammar cannot be compiled: {_explain(matcher)}", "grammar")


def _explain(matcher: LLMatcher) -> str:
    """Return a matcher's error in one line."""
    reason = " ".join(matcher.get_error().removesuffix("<non-verbose/>").split())[:MOST_SHOWN]
    reason = reason.replace("patternProperty regexes", "the regular expressions of 'patternProperties'")
    return "no text can match it" if reason.startswith("NoExtension") else reason
