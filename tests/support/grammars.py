"""Grammars over the tokens of the toy: sums of tokens, so that every mask depends on all tokens before it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from parallax_core.api import BackendFailed, Draft, Grammar, InvalidRequest, Sampling, draw
from parallax_core.testing.masks import make_mask
from parallax_core.testing.toy import GREEDY, Toy

STOP = 96
"""The token that ends answers."""


@dataclass(slots=True)
class SumMatcher:
    """Allows the tokens of one remainder by ``base``, which the sum of the tokens before gives; ends after ``most``."""

    base: int
    most: int
    vocab_size: int
    tokens: list[int] = field(default_factory=list)

    def advance(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if token not in self.list_allowed({STOP}, may_end=True):
                raise BackendFailed(f"token {token} is not allowed after {self.tokens}")
            self.tokens.append(token)

    def list_allowed(self, stop_ids: Collection[int], *, may_end: bool) -> list[int]:
        remainder = sum(self.tokens) % self.base
        allowed = [token for token in range(self.vocab_size - 1) if token % self.base == remainder]
        if len(self.tokens) >= self.most:
            return sorted(stop_ids)
        can_end = remainder == 0 and self.tokens and may_end
        return [*allowed, *stop_ids] if can_end else allowed

    def find_mask(self, stop_ids: Collection[int], *, may_end: bool) -> bytes:
        return bytes(make_mask(self.list_allowed(stop_ids, may_end=may_end), self.vocab_size).data)


@dataclass(frozen=True, slots=True)
class SumGrammar:
    """A compiled grammar."""

    base: int
    most: int
    vocab_size: int

    def start(self) -> SumMatcher:
        return SumMatcher(self.base, self.most, self.vocab_size)


@dataclass(slots=True)
class SumCompiler:
    """Compiles ``BASE MOST``; anything else is refused. ``may_go_on`` holds all compilations up while it is not set."""

    vocab_size: int = 97
    num_compiled: int = 0
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_go_on.set()

    def compile(self, grammar: Grammar) -> SumGrammar:
        assert self.may_go_on.wait(20)
        self.num_compiled += 1
        try:
            base, most = map(int, grammar.source.split())
        except ValueError as error:
            raise InvalidRequest("the grammar is not two numbers", "grammar") from error
        return SumGrammar(base, most, self.vocab_size)


def make_grammar(base: int = 5, most: int = 12) -> Grammar:
    """Return the grammar in which a token's remainder by ``base`` is that of the sum of the tokens before it."""
    return Grammar(kind="regex", source=f"{base} {most}")


def expect_answer(
    toy: Toy, prompt: Sequence[int], grammar: Grammar, sampling: Sampling = GREEDY, choice: int = 0
) -> list[int]:
    """Return the tokens of an answer under a grammar, with its stop token, computed alone by the plain model."""
    matcher, output = SumCompiler(toy.vocab).compile(grammar).start(), list[int]()
    while not output or output[-1] != STOP:
        may_end = len(output) >= sampling.min_tokens
        allowed = matcher.list_allowed({STOP}, may_end=may_end)
        output.append(draw(toy.logits([*prompt, *output]), Draft(sampling, prompt, output, choice), allowed))
        matcher.advance(output[-1:])
    return output
