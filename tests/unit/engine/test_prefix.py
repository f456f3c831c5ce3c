from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from parallax_core.api import SeqId
from parallax_core.engine.prefix import Match, PrefixIndex, make_key

A, B, C = SeqId(1), SeqId(2), SeqId(3)
TOKENS = st.lists(st.integers(0, 2), max_size=8)


def count_common(left: list[int], right: list[int]) -> int:
    size = 0
    while size < min(len(left), len(right)) and left[size] == right[size]:
        size += 1
    return size


def test_longest_beginning_is_found_and_then_the_ends_before_it() -> None:
    index = PrefixIndex()
    index.insert("", make_key([1, 2, 3, 4, 5]), A)
    index.insert("", make_key([1, 2]), B)
    index.insert("", make_key([1, 2, 3, 9]), C)
    assert list(index.match("", make_key([1, 2, 3, 4, 7]))) == [Match(A, 4), Match(B, 2)]
    assert list(index.match("", make_key([1, 2, 3, 9, 9]))) == [Match(C, 4), Match(B, 2)]
    assert list(index.match("", make_key([1, 2]))) == [Match(B, 2)]
    assert list(index.match("", make_key([1]))) == [Match(B, 1)]
    assert list(index.match("", make_key([7]))) == []
    assert list(index.match("", make_key([]))) == []


def test_spaces_do_not_meet() -> None:
    index = PrefixIndex()
    index.insert("one", make_key([1, 2]), A)
    assert list(index.match("two", make_key([1, 2]))) == []


def test_sequence_is_stored_once_and_removed_once() -> None:
    index = PrefixIndex()
    index.insert("", make_key([1]), A)
    with pytest.raises(KeyError):
        index.insert("", make_key([2]), A)
    index.remove(A)
    assert A not in index
    with pytest.raises(KeyError):
        index.remove(A)


def test_keys_may_be_hashes_of_64_bits() -> None:
    index = PrefixIndex()
    index.insert("", make_key([5, 2**64 - 1]), A)
    assert list(index.match("", make_key([5, 2**64 - 1, 0]))) == [Match(A, 2)]


class PrefixIndexMachine(RuleBasedStateMachine):
    """Random sequences against a plain search through all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.stored: dict[SeqId, list[int]] = {}
        self.names = iter(range(10**6))

    @rule(tokens=TOKENS)
    def insert(self, tokens: list[int]) -> None:
        seq = SeqId(next(self.names))
        self.index.insert("", make_key(tokens), seq)
        self.stored[seq] = tokens

    @precondition(lambda self: self.stored)
    @rule(pick=st.integers(0, 99))
    def remove(self, pick: int) -> None:
        seq = list(self.stored)[pick % len(self.stored)]
        self.index.remove(seq)
        del self.stored[seq]

    @rule(tokens=TOKENS)
    def match(self, tokens: list[int]) -> None:
        found = list(self.index.match("", make_key(tokens)))
        longest = max((count_common(tokens, other) for other in self.stored.values()), default=0)
        assert (found[0].length if found else 0) == longest
        assert all(self.stored[match.seq][: match.length] == tokens[: match.length] for match in found)
        ends = {len(other) for other in self.stored.values() if other and tokens[: len(other)] == other}
        assert {match.length for match in found} == ends | ({longest} - {0})
        assert [match.length for match in found] == sorted({match.length for match in found}, reverse=True)
        for match in found[1:]:
            assert len(self.stored[match.seq]) == match.length

    @invariant()
    def is_compact(self) -> None:
        assert len(self.index) == len(self.stored)
        self.index.check()


PrefixIndexMachine.TestCase.settings = settings(stateful_step_count=40)
TestPrefixIndex = PrefixIndexMachine.TestCase
