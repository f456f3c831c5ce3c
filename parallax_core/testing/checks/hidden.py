"""Tests the optional capabilities ``hidden`` and ``positions``."""

from __future__ import annotations

from collections.abc import Sequence

from parallax_core.api import Answer, Hidden, Row, StageResult, State, Tensor
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.checks.subject import StageSubject

FLOATS = {"float32", "float16", "bfloat16"}


class HiddenChecks(StageSubject):
    """Stages with the capabilities ``hidden`` and ``positions``; for others they are refused."""

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
