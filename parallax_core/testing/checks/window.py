"""Tests sliding windows: each token attends to the pool's window, and older pages are reused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from parallax_core.api import Answer, Draw, LayerRange, Row, StageBatch, Tensor
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.checks.subject import StageSubject


@dataclass(frozen=True, slots=True)
class StageInput:
    """The input of a stage for a sequence: tokens, and hidden tensors unless it starts with layer 0."""

    tokens: tuple[int, ...]
    hidden: tuple[Tensor, ...]

    def swap(self, index: int, other: StageInput) -> StageInput:
        """Return a copy with the token of ``other`` at one position."""
        if not self.hidden:
            return replace(self, tokens=(*self.tokens[:index], other.tokens[index], *self.tokens[index + 1 :]))
        return replace(self, hidden=tuple(map(_swap_row, self.hidden, other.hidden, [index] * len(self.hidden))))


class WindowChecks(StageSubject):
    """Layers with a sliding window."""

    def test_window_layer_sees_exactly_its_window(self) -> None:
        """Within one step, the output of a window layer depends on the last ``window`` tokens only."""
        for layer in range(self.num_layers if self.list_splits() or self.num_layers == 1 else 0):
            with Chain([self.open_stage(LayerRange(layer, layer + 1))]) as chain:
                (pool, *_) = chain.first.pools
                if pool.kind != "window" or pool.window + 2 > chain.max_tokens:
                    continue
                for distance, counts in self._probe(chain, layer, pool.window).items():
                    assert counts == (distance < pool.window), (
                        f"layer {layer} says that it has a window of {pool.window} tokens, and the token {distance}"
                        f" before the last one {'changes' if counts else 'does not change'} what it gives"
                    )

    def test_sequence_goes_on_when_its_first_pages_are_forgotten(self) -> None:
        """If there are only window and state pools, a sequence may have more tokens than the pools."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain)
            if {pool.info.kind for pool in chain.pools[0]} <= {"window", "state"}:
                length = min(4 * self.longest, chain.first.context_length - 1)
                tokens = (tokens * (length // len(tokens) + 1))[:length]
            expected = self._trace_far(chain, tokens, chain.max_tokens)
            for size in (1, 3):
                found = self._trace_far(chain, tokens, size)
                self.compare(found, expected, f"in chunks of {size}, a sequence of {len(tokens)} tokens differs")

    def _trace_far(self, chain: Chain, tokens: Sequence[int], size: int) -> list[Answer]:
        seq = chain.open()
        answers = chain.trace(seq, tokens, size)
        chain.drop(seq)
        return answers

    def _probe(self, chain: Chain, layer: int, window: int) -> dict[int, bool]:
        """Return for each distance from the last token whether the token there affects a layer's output."""
        first, second = (self._give(layer, self.make_tokens(chain, 4, seed)[: window + 2]) for seed in range(2))
        expected = self._take(chain, first)
        last = len(first.tokens) - 1
        return {last - index: self._take(chain, first.swap(index, second)) != expected for index in range(last + 1)}

    def _give(self, layer: int, tokens: tuple[int, ...]) -> StageInput:
        """Return the output of the layers before ``layer`` for tokens."""
        if not layer:
            return StageInput(tokens, ())
        with Chain([self.open_stage(LayerRange(0, layer))]) as chain:
            return StageInput(tokens, chain.step(chain.row(chain.open(), tokens)).tensors)

    def _take(self, chain: Chain, given: StageInput) -> object:
        """Return the layer's output for the last token: hidden states, or the drawn token."""
        seq = chain.open()
        draw = Draw(len(given.tokens) - 1, 1, 8 if chain.can_score else -1)
        row = Row(seq, 0, given.tokens, (draw,))
        result = chain.stages[0].step(StageBatch((row,), given.hidden)).wait()
        chain.account(row)
        chain.drop(seq)
        return result.answers or [_list_rows(tensor)[-1] for tensor in result.tensors]


def _list_rows(tensor: Tensor) -> list[bytes]:
    data = bytes(tensor.data)
    size = len(data) // tensor.shape[0]
    return [data[start : start + size] for start in range(0, len(data), size)]


def _swap_row(tensor: Tensor, other: Tensor, index: int) -> Tensor:
    rows = _list_rows(tensor)
    rows[index] = _list_rows(other)[index]
    return replace(tensor, data=b"".join(rows))
