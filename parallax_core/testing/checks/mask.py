"""Tests draws that wait for a mask; skipped for a stage without the capability ``masks``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from parallax_core.api import (
    Answer,
    BackendFailed,
    Draw,
    Drawn,
    MaskSource,
    Row,
    Sampling,
    StageBatch,
    StageOutput,
)
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.checks.subject import StageSubject
from parallax_core.testing.masks import GivenMasks, LateMasks, MissingMasks, make_mask
from parallax_core.testing.promise import broken, expect

ONLY = "Whether the draw waits for a mask, and takes only tokens that it allows"
UNDER = "log-probabilities are then those under"
ALL_SAME = "All of ``count`` tokens are drawn under the same mask."
UNCHANGED = "every sequence is as before the step."
NONE = "The masks of the draws that wait for one; None if there is no such draw."
HOT = Sampling(temperature=5.0, seed=11)
NUM_ALLOWED = 5
NUM_DRAWS = 8


class MaskChecks(StageSubject):
    """Draws under masks: allowed tokens, rows, log-probabilities, and masks that come late or never."""

    def test_masked_draw_takes_only_what_the_mask_allows(self) -> None:
        """A draw under a mask equals a draw in which all other tokens are forbidden by a bias."""
        with self.open_whole() as chain:
            if "masks" not in chain.last.capabilities:
                return
            tokens = self.make_tokens(chain, 2)[:4]
            for sampling in (Sampling(temperature=0), HOT, Sampling(temperature=2.0, top_k=2, top_p=0.9, seed=3)):
                for shift in range(3):
                    allowed = self._list_allowed(chain, shift)
                    found = self._draw(chain, tokens, sampling, self._give_mask(chain, allowed))
                    banned = set(range(chain.last.vocab_size)) - set(allowed)
                    biased = replace(sampling, logit_bias=tuple((token, -math.inf) for token in sorted(banned)))
                    wanted = chain.draw_after(tokens, sampling=biased)
                    fault = f"a mask of {allowed} lets {found.tokens} through; a bias that forbids the others draws"
                    assert found.tokens == wanted.tokens, broken(f"{fault} {wanted.tokens}", ONLY)

    def test_each_draw_has_its_own_mask(self) -> None:
        """Rows and outputs of one batch have different masks, or none, and each draw takes its own."""
        with self.open_whole() as chain:
            if "masks" not in chain.last.capabilities:
                return
            tokens, size = self.make_tokens(chain, 4)[:2], chain.last.vocab_size
            free = chain.draw_after(tokens, sampling=HOT)
            seqs = [chain.open(2, HOT) for _ in range(3)]
            rows = (
                chain.row(seqs[0], tokens, Draw(0, masked=True), Draw(1, masked=True)),
                chain.row(seqs[1], tokens, Draw(1)),
                chain.row(seqs[2], tokens, Draw(1, masked=True)),
            )
            masks = {number: make_mask([token], size) for number, token in ((0, 1), (1, 2), (3, 0))}
            answers = self._begin_masked(chain, rows, GivenMasks(masks)).wait().answers
            found = [answer.tokens for answer in answers if isinstance(answer, Drawn)]
            wanted = [(1,), (2,), free.tokens, (0,)]
            assert found == wanted, broken(f"draws under masks of their own are {found} instead of {wanted}", ONLY)

    def test_draws_of_one_output_share_its_mask(self) -> None:
        """All draws of one output take the tokens that its mask allows."""
        with self.open_whole() as chain:
            if "masks" not in chain.last.capabilities:
                return
            tokens, allowed = self.make_tokens(chain, 2)[:4], self._list_allowed(chain)
            found = self._draw(
                chain, tokens, HOT, self._give_mask(chain, allowed), Draw(-1, NUM_DRAWS, masked=True)
            ).tokens
            fault = f"{NUM_DRAWS} draws under a mask of {allowed} give {found}"
            assert len(found) == NUM_DRAWS, broken(fault, ALL_SAME)
            assert set(found) <= set(allowed), broken(fault, ALL_SAME)

    def test_logprobs_are_those_under_the_mask(self) -> None:
        """The log-probabilities of the allowed tokens sum to one, and the others have minus infinity."""
        with self.open_whole() as chain:
            if not {"masks", "logprobs"} <= chain.last.capabilities:
                return
            tokens, allowed = self.make_tokens(chain, 2)[:4], self._list_allowed(chain)
            draw = Draw(-1, 1, NUM_ALLOWED + 1, masked=True)
            found = self._draw(chain, tokens, HOT, self._give_mask(chain, allowed), draw)
            best, after = found.top[:NUM_ALLOWED], found.top[NUM_ALLOWED][1]
            total = sum(math.exp(logprob) for _, logprob in best)
            fault = f"the best tokens under a mask of {allowed} are {found.top}"
            assert {token for token, _ in best} == set(allowed), broken(fault, UNDER)
            assert abs(total - 1) < self.margin, broken(f"{fault}, with probabilities that sum to {total}", UNDER)
            assert after == -math.inf, broken(fault, UNDER)

    def test_masks_may_come_late(self) -> None:
        """A step may begin before its masks have come, and waits for them."""
        with self.open_whole() as chain:
            if "masks" not in chain.last.capabilities:
                return
            tokens, allowed = self.make_tokens(chain, 2)[:4], self._list_allowed(chain)
            wanted = self._draw(chain, tokens, HOT, self._give_mask(chain, allowed))
            mask = {0: make_mask(allowed, chain.last.vocab_size)}
            found = self._draw(chain, tokens, HOT, LateMasks(mask))
            assert found == wanted, broken(f"a late mask gives {found} instead of {wanted}", ONLY)
            assert found.tokens[0] in allowed, broken(f"a late mask of {allowed} gives {found.tokens}", ONLY)

    def test_missing_masks_fail_the_step_alone(self) -> None:
        """A step whose masks do not come raises, and leaves every sequence as it was."""
        with self.open_whole() as chain:
            if "masks" not in chain.last.capabilities:
                return
            tokens = self.make_tokens(chain, 4)[:6]
            expected = chain.trace_new(tokens)
            seq = chain.open()
            chain.feed(seq, tokens[:2])
            row = chain.row(seq, tokens[2:4], Draw(1, masked=True))
            with expect(BackendFailed, "a step whose masks do not come", UNCHANGED):
                chain.stages[0].step(StageBatch((row,), masks=MissingMasks())).wait()
            self.compare(chain.trace(seq, tokens[2:]), expected[2:], "a step without its masks changed a sequence")

    def test_masks_of_steps_in_flight_are_not_mixed_up(self) -> None:
        """Two steps are begun one after the other; each draws under its own mask."""
        with self.open_whole() as chain:
            if "masks" not in chain.last.capabilities:
                return
            tokens, size = self.make_tokens(chain, 4)[:2], chain.last.vocab_size
            outputs = []
            for token in (1, 2):
                row = chain.row(chain.open(2, HOT), tokens, Draw(1, masked=True))
                outputs.append(self._begin_masked(chain, (row,), GivenMasks({0: make_mask([token], size)})))
            found = [output.wait().answers for output in outputs]
            wanted: list[tuple[Answer, ...]] = [(Drawn((1,)),), (Drawn((2,)),)]
            assert found == wanted, broken(f"steps in flight draw {found} under masks for 1 and for 2", ONLY)

    def test_masked_draw_without_masks_is_refused(self) -> None:
        """A batch with a draw that waits for a mask, and without masks, raises ValueError."""
        with self.open_whole() as chain:
            if "masks" not in chain.last.capabilities:
                return
            seq = chain.open()
            with expect(ValueError, "a masked draw in a batch without masks", NONE):
                chain.stages[0].step(StageBatch((Row(seq, 0, (1,), (Draw(0, masked=True),)),)))

    def _list_allowed(self, chain: Chain, shift: int = 0) -> list[int]:
        """Return some tokens spread over the vocabulary."""
        size = chain.last.vocab_size
        return sorted({(size * part // NUM_ALLOWED + shift) % size for part in range(NUM_ALLOWED)})

    def _give_mask(self, chain: Chain, allowed: Sequence[int]) -> MaskSource:
        return GivenMasks({0: make_mask(allowed, chain.last.vocab_size)})

    def _draw(
        self,
        chain: Chain,
        tokens: Sequence[int],
        sampling: Sampling,
        masks: MaskSource,
        draw: Draw | None = None,
    ) -> Drawn:
        """Return what is drawn after ``tokens`` under a mask, in a sequence of its own, dropped again."""
        seq = chain.open(len(tokens), sampling)
        chain.feed(seq, tokens[:-1])
        asked = draw or Draw(-1, masked=True)
        row = chain.row(seq, tokens[-1:], Draw(0, asked.count, asked.top, asked.masked))
        (answer,) = self._begin_masked(chain, (row,), masks).wait().answers
        chain.drop(seq)
        assert isinstance(answer, Drawn), f"a draw was answered with {type(answer).__name__}, not Drawn"
        return answer

    def _begin_masked(self, chain: Chain, rows: tuple[Row, ...], masks: MaskSource) -> StageOutput:
        """Begin a step with masks on the only stage."""
        output = chain.stages[0].step(StageBatch(rows, masks=masks))
        chain.account(*rows)
        return output
