"""Tests the optional capabilities ``hidden``, ``hidden_sums`` and ``positions``."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from parallax_core.api import Answer, Hidden, Row, StageBatch, StageResult, State, Tensor
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.checks.error import MISFIT
from parallax_core.testing.checks.subject import StageSubject
from parallax_core.testing.promise import expect

FLOATS = {"float32", "float16", "bfloat16"}
SHARE = 0.02
"""The largest difference between sums of hidden states, computed alone or in a batch, as a share of the largest number:
16-bit floats have that."""


class HiddenChecks(StageSubject):
    """Stages with the capabilities ``hidden``, ``hidden_sums`` and ``positions``; for others they are refused."""

    def test_hidden_states_are_tensors_of_one_row(self) -> None:
        """Each `Hidden` is answered with a float tensor of shape [width] of its own; draws beside it stay the same."""
        with self.open_whole() as chain:
            if "hidden" in chain.last.capabilities:
                tokens = self.make_tokens(chain, 4)[:4]
                expected = chain.trace_new(tokens)
                draws = chain.draws(4)
                outputs = (Hidden(0), draws[1], Hidden(2), Hidden(3), draws[3])
                result = chain.step(chain.row(chain.open(), tokens, *outputs))
                answers = result.answers
                self.compare([answers[1], answers[4]], [expected[1], expected[3]], "draws beside hidden states differ")
                found = [find_tensor(result, index) for index in (0, 2, 3)]
                assert len({tensor.shape for tensor in found}) == 1, "hidden states differ in width"
                assert {tensor.dtype for tensor in found} <= FLOATS, f"hidden states are {found[0].dtype}, not float"
                assert len(found[0].shape) == 1, f"a hidden state has the shape {found[0].shape}, not [width]"
                assert len({bytes(tensor.data) for tensor in found}) == 3, "different tokens have the same hidden state"  # noqa: PLR2004

    def test_hidden_states_are_the_same_in_a_batch(self) -> None:
        """A token has the same hidden state in a batch as alone."""
        with self.open_whole() as chain:
            if "hidden" in chain.last.capabilities and self.exact:
                texts = [self.make_tokens(chain, 4, seed)[:2] for seed in range(3)]
                alone = [bytes(self._ask(chain, text).data) for text in texts]
                rows = [chain.row(chain.open(), text, Hidden(1)) for text in texts]
                result = chain.step(*rows)
                found = [bytes(find_tensor(result, index).data) for index in range(3)]
                assert found == alone, "hidden states in a batch differ from those alone"

    def test_hidden_states_are_summed_in_float32(self) -> None:
        """A `Hidden` with ``summed`` is the sum of the states of these tokens, beside draws and in a batch too."""
        with self.open_whole() as chain:
            if "hidden_sums" in chain.last.capabilities:
                tokens = self.make_tokens(chain, 4)[:4]
                each = self._sum(chain, chain.row(chain.open(), tokens, *[Hidden(at, 1) for at in range(4)]))
                draw, expected = chain.draws(4)[3], chain.trace_new(tokens)
                outputs = (Hidden(1, 2), Hidden(2, 2), Hidden(3, 4), draw)
                result = chain.step(
                    chain.row(chain.open(), tokens[:2], Hidden(1, 2)), chain.row(chain.open(), tokens, *outputs)
                )
                found = [read_sum(result, index) for index in range(4)]
                wanted = [add_up(each[:2]), add_up(each[:2]), add_up(each[1:3]), add_up(each)]
                for sums, right in zip(found, wanted, strict=True):
                    assert are_close(sums, right), f"a sum of hidden states begins {sums[:3]}, not {right[:3]}"
                self.compare([result.answers[4]], [expected[3]], "a draw beside a sum of hidden states differs")
                row = chain.row(chain.open(), tokens, Hidden(1, 3))
                with expect(ValueError, "a sum of hidden states before the first token of its row", MISFIT):
                    chain.stages[0].step(StageBatch((row,)))

    def test_hidden_states_of_chunks_sum_to_those_of_the_whole(self) -> None:
        """The sums of a prompt's chunks add up to the sum of the prompt."""
        with self.open_whole() as chain:
            if "hidden_sums" in chain.last.capabilities:
                tokens = self.make_tokens(chain, 2)[:6]
                [whole] = self._sum(chain, chain.row(chain.open(), tokens, Hidden(5, 6)))
                seq, parts = chain.open(), list[Sequence[float]]()
                for chunk in (tokens[:3], tokens[3:4], tokens[4:]):
                    parts += self._sum(chain, chain.row(seq, chunk, Hidden(len(chunk) - 1, len(chunk))))
                found = add_up(parts)
                assert are_close(found, whole), f"the sums of chunks add up to {found[:3]}, not {whole[:3]}"

    def test_positions_that_are_given_count(self) -> None:
        """Default positions given explicitly change nothing; others change the result, in chunks as at once."""
        with self.open_whole() as chain:
            if "positions" in chain.first.capabilities:
                tokens = self.make_tokens(chain, 2)[:6]
                plain = chain.trace_new(tokens)
                found = self._place(chain, tokens, range(6), 6)
                self.compare(found, plain, "positions given as they are by themselves change what is drawn")
                places = (0, 1, 2, 7, 9, 10)
                at_once = self._place(chain, tokens, places, 6)
                self.compare(at_once[:3], plain[:3], "later positions change what is drawn before them")
                assert at_once[3:] != plain[3:], "the given positions are ignored"
                for size in (1, 2, 4):
                    found = self._place(chain, tokens, places, size)
                    self.compare(found, at_once, f"given positions count otherwise in chunks of {size}")

    def _ask(self, chain: Chain, tokens: tuple[int, ...]) -> Tensor:
        seq = chain.open()
        result = chain.step(chain.row(seq, tokens, Hidden(len(tokens) - 1)))
        chain.drop(seq)
        return find_tensor(result, 0)

    def _sum(self, chain: Chain, row: Row) -> list[Sequence[float]]:
        result = chain.step(row)
        return [read_sum(result, index) for index in range(len(result.answers))]

    def _place(self, chain: Chain, tokens: Sequence[int], places: Sequence[int], size: int) -> list[Answer]:
        """Return what is drawn after each token at a position of its own, in chunks of ``size``."""
        seq = chain.open()
        answers: list[Answer] = []
        for start in range(0, len(tokens), size):
            chunk = tuple(tokens[start : start + size])
            given = tuple(places[start : start + size])
            answers += chain.step(Row(seq, start, chunk, tuple(chain.draws(len(chunk))), given)).answers
        chain.drop(seq)
        return answers


def find_tensor(result: StageResult, index: int) -> Tensor:
    """Return the tensor an answer names."""
    answer = result.answers[index]
    assert isinstance(answer, State), f"Hidden is answered with {answer}"
    assert answer.tensor < len(result.tensors), f"{answer} names a tensor that is not in the result"
    return result.tensors[answer.tensor]


def read_sum(result: StageResult, index: int) -> Sequence[float]:
    """Return the numbers of a sum of hidden states that an answer names."""
    tensor = find_tensor(result, index)
    assert tensor.dtype == "float32", f"a sum of hidden states is {tensor.dtype}, not float32"
    assert len(tensor.shape) == 1, f"a sum of hidden states has the shape {tensor.shape}, not [width]"
    return struct.unpack(f"<{tensor.shape[0]}f", tensor.data)


def add_up(parts: Sequence[Sequence[float]]) -> list[float]:
    """Return the sum of vectors."""
    return [math.fsum(numbers) for numbers in zip(*parts, strict=True)]


def are_close(found: Sequence[float], expected: Sequence[float]) -> bool:
    """Return whether no number is off by more than a share of the largest."""
    most = SHARE * max(map(abs, expected))
    return len(found) == len(expected) and all(abs(a - b) <= most for a, b in zip(found, expected, strict=True))
