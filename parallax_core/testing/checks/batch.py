"""Alone equals batched, chunked equals at once, decoded equals prefilled."""

from __future__ import annotations

from collections.abc import Sequence

from parallax_core.api import Answer, Drawn, Row, logprobs
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.checks.subject import StageSubject


class BatchChecks(StageSubject):
    """The continuation of tokens does not depend on how they arrived at the stage."""

    def test_logits_are_those_of_the_other_implementation(self) -> None:
        """Where `compute_logits` is given, the log-probabilities and the best token agree with it after every token."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain)
            found = chain.trace_new(tokens)
            for index, answer in enumerate(found):
                logits = self.compute_logits(tokens[: index + 1])
                if logits is None:
                    return
                scores = logprobs(logits)
                best = sorted(range(len(scores)), key=lambda token: (-scores[token], token))[:2]
                expected = Drawn(
                    (best[0],),
                    (scores[best[0]],) if chain.can_score else (),
                    tuple((token, scores[token]) for token in best) if chain.can_score else (),
                )
                self.compare([answer], [expected], f"the model is another one after {index + 1} tokens")

    def test_chunked_prefill_equals_at_once(self) -> None:
        """A prompt in chunks of every size gives the same tokens as in the largest possible chunks."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 2)
            expected = chain.trace_new(tokens)
            for size in range(1, min(len(tokens), chain.max_tokens) + 1):
                seq = chain.open()
                found = chain.trace(seq, tokens, size)
                chain.drop(seq)
                self.compare(found, expected, f"a prompt in chunks of {size} gives other tokens than at once")

    def test_prompt_after_a_first_chunk_of_any_size_is_the_same(self) -> None:
        """A chunk that begins anywhere, as after a cached prefix, gives the same tokens as a chunk from the start."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 2)
            expected = chain.trace_new(tokens)
            for cut in range(1, len(tokens)):
                seq = chain.open()
                chain.feed(seq, tokens[:cut])
                found = chain.trace(seq, tokens[cut:])
                chain.drop(seq)
                self.compare(found, expected[cut:], f"a prompt that goes on at {cut} gives other tokens than at once")

    def test_decode_equals_prefill(self) -> None:
        """Tokens drawn one by one equal those of a single prefill of prompt and output."""
        with self.open_whole() as chain:
            prompt = self.make_tokens(chain, 2)[:5]
            seq = chain.open(len(prompt))
            drawn = chain.trace(seq, prompt)[-1:]
            room = len(self.make_tokens(chain, 2)) - len(prompt)
            for _ in range(room):
                drawn += chain.trace(seq, read_tokens(drawn[-1:]))
            whole = [*prompt, *read_tokens(drawn[:-1])]
            expected = chain.trace_new(whole)[len(prompt) - 1 :]
            self.compare(drawn, expected, "tokens drawn one by one differ from those of a prefill")

    def test_batch_equals_alone(self) -> None:
        """Rows of one batch, decodes and chunks mixed, give the same answers as alone."""
        with self.open_whole() as chain:
            rows, expected = self._prepare_rows(chain)
            found = chain.step(*rows).answers
            self.compare(found, [answer for part in expected for answer in part], "rows in a batch differ from alone")

    def test_order_of_rows_does_not_matter(self) -> None:
        """The same rows in another order give the same answers, in that order."""
        for order in ((2, 0, 1), (1, 2, 0), (2, 1, 0)):
            with self.open_whole() as chain:
                rows, parts = self._prepare_rows(chain)
                found = chain.step(*[rows[index] for index in order]).answers
                expected = [answer for index in order for answer in parts[index]]
                self.compare(found, expected, f"rows in the order {order} are answered as in another order")

    def test_batches_go_on_as_they_began(self) -> None:
        """Sequences continue correctly as they move between batches and single rows, over several steps."""
        with self.open_whole() as chain:
            texts = [self.make_tokens(chain, 4, seed)[:8] for seed in range(3)]
            expected = [chain.trace_new(text) for text in texts]
            seqs = [chain.open() for _ in texts]
            for start in range(0, 8, 2):
                for index, seq in enumerate(seqs):  # alone
                    found = chain.trace(seq, texts[index][start : start + 1])
                    self.compare(found, expected[index][start : start + 1], "a row after a batch gives other tokens")
                rows = [
                    chain.row(seq, texts[index][start + 1 : start + 2], *chain.draws(1))
                    for index, seq in enumerate(seqs)
                ]
                together = [part[start + 1] for part in expected]
                self.compare(chain.step(*rows).answers, together, "decodes in one batch differ from alone")

    def test_every_output_of_a_row_is_answered_in_order(self) -> None:
        """Draws at every offset of several rows, two at each, come back in their order."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 4)[:4]
            expected = chain.trace(chain.open(), tokens, 1)
            draws = chain.draws(4)
            rows = [
                chain.row(chain.open(), tokens, *[draw for draw in draws for _ in range(2)]),
                chain.row(chain.open(), tokens, draws[1], draws[3]),
            ]
            wanted = [*[answer for answer in expected for _ in range(2)], expected[1], expected[3]]
            self.compare(chain.step(*rows).answers, wanted, "outputs at all offsets, two at each, and at 1 and 3")

    def test_prefill_rows_have_no_answers(self) -> None:
        """A row without outputs adds nothing to the answers of the rows around it."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 4)[:2]
            expected = chain.trace_new(tokens)[-1:]
            draw = chain.draws(2)[1]
            rows = [chain.row(chain.open(), tokens, *outputs) for outputs in ((), (draw,), ())]
            self.compare(chain.step(*rows).answers, expected, "a row among rows without outputs is answered otherwise")

    def _prepare_rows(self, chain: Chain) -> tuple[list[Row], list[list[Answer]]]:
        """Return a decode, a chunk and the beginning of a prompt, with the answers of each alone."""
        rows: list[Row] = []
        expected: list[list[Answer]] = []
        for seed, (length, size) in enumerate(((5, 1), (2, 3), (0, 4))):
            tokens = self.make_tokens(chain, 4, seed)[: length + size]
            expected.append(chain.trace_new(tokens)[length:])
            seq = chain.open()
            if length:
                chain.feed(seq, tokens[:length])
            rows.append(chain.row(seq, tokens[length:], *chain.draws(size)))
        return rows, expected


def read_tokens(answers: Sequence[Answer]) -> list[int]:
    """Return the tokens of draws."""
    return [token for answer in answers if isinstance(answer, Drawn) for token in answer.tokens]
