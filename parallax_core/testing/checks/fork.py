"""Tests that forks share and copy the right pages and are independent sequences."""

from __future__ import annotations

from parallax_core.api import Answer, Drop, Fork, Sampling, SeqId, SequenceSpec, Truncate
from parallax_core.testing.checks.chain import GREEDY, Chain
from parallax_core.testing.checks.subject import StageSubject

HOT = Sampling(temperature=50.0, seed=11)


class ForkChecks(StageSubject):
    """A fork equals a sequence that was computed for itself."""

    def test_fork_at_every_length_equals_recomputation(self) -> None:
        """A fork at every length that the pools allow continues like a sequence computed from the start."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 3)
            expected = chain.trace_new(tokens)
            src = chain.open()
            for length in range(len(tokens) + 1):
                dst = chain.fork(src, length)
                found = chain.trace(dst, tokens[length:])
                self.compare(found, expected[length:], f"a fork at {length}, its source's length, differs")
                chain.drop(dst)
                if length < len(tokens):
                    chain.feed(src, tokens[length : length + 1])

    def test_fork_behind_the_end_equals_recomputation(self) -> None:
        """The same for forks at lengths before the end of the source, as far back as the pools allow."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 3)
            expected = chain.trace_new(tokens)
            src = chain.open()
            chain.feed(src, tokens)
            for length in range(len(tokens)):
                if chain.can_rewind(src, length):
                    dst = chain.fork(src, length)
                    found = chain.trace(dst, tokens[length:])
                    self.compare(found, expected[length:], f"a fork at {length} of {len(tokens)} tokens differs")
                    chain.drop(dst)

    def test_source_and_fork_do_not_see_each_other(self) -> None:
        """After a fork both sequences grow, alone and in one batch, and neither affects the other."""
        with self.open_whole() as chain:
            tokens, others = self.make_tokens(chain, 4)[:12], self.make_tokens(chain, 4, 1)
            for length in range(1, len(tokens) - 3):
                mine, yours = tokens[: length + 3], (*tokens[:length], *others[:3])
                expected = chain.trace_new(mine)[length:], chain.trace_new(yours)[length:]
                src = chain.open()
                chain.feed(src, tokens[:length])
                dst = chain.fork(src, length)
                found = self._write_in_turn(chain, {src: mine[length:], dst: yours[length:]})
                self.compare(found[src], expected[0], f"after a fork at {length} the source sees what the fork wrote")
                self.compare(found[dst], expected[1], f"after a fork at {length} the fork sees what its source wrote")
                chain.drop(src, dst)

    def test_fork_keeps_the_moment_it_was_made(self) -> None:
        """The last page is copied at once: later changes of the source do not affect the fork."""
        with self.open_whole() as chain:
            tokens, others = self.make_tokens(chain, 4)[:12], self.make_tokens(chain, 4, 1)
            for length in range(2, len(tokens) - 1):
                expected = chain.trace_new(tokens)[length:]
                src = chain.open()
                chain.feed(src, tokens[:length])
                dst = chain.new_handle()
                back = length - 1 if chain.can_rewind(src, length - 1) else length
                chain.edit(Fork(src, dst, length), *([Truncate(src, back)] if back < length else []))
                chain.feed(src, others[:2])  # over the last token of the tail, where that can be
                found = chain.trace(dst, tokens[length:])
                self.compare(found, expected, f"a fork at {length} has what its source wrote into its tail afterwards")
                chain.drop(src, dst)

    def test_shared_pages_are_copied_before_they_are_written(self) -> None:
        """A fork truncated into a shared page takes a page of its own before it writes."""
        with self.open_whole() as chain:
            tokens, others = self.make_tokens(chain, 4), self.make_tokens(chain, 4, 1)
            for length in range(2, len(tokens) - 1):
                src = chain.open()
                chain.feed(src, tokens[:length])
                if chain.can_rewind(src, length - 1):
                    dst = chain.fork(src, length)
                    chain.edit(Truncate(dst, length - 1))
                    found = chain.trace(dst, others[:1])
                    wanted = chain.trace_new((*tokens[: length - 1], others[0]))[-1:]
                    self.compare(found, wanted, f"a fork cut back from {length} goes on with something else")
                    left = chain.trace(src, tokens[length : length + 1])
                    wanted = chain.trace_new(tokens[: length + 1])[-1:]
                    self.compare(left, wanted, f"a fork cut back from {length} wrote into a page it shares")
                    chain.drop(dst)
                chain.drop(src)

    def test_forks_of_forks_are_forks(self) -> None:
        """In a chain of forks, each still continues correctly after the ones before it are dropped."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 4)[:9]
            line = [chain.open()]
            chain.feed(line[0], tokens[:3])
            for length in range(3, 6):
                line.append(chain.fork(line[-1], length))
                chain.feed(line[-1], tokens[length : length + 1])
            chain.drop(*line[:-1])
            found = chain.trace(line[-1], tokens[6:])
            self.compare(found, chain.trace_new(tokens)[6:], "a fork of a fork of a fork differs")

    def test_fork_outlives_its_source(self) -> None:
        """A fork continues correctly after its source is dropped and others have written to the source's pages."""
        with self.open_whole() as chain:
            tokens, others = self.make_tokens(chain, 4)[:11], self.make_tokens(chain, 4, 1)
            expected = chain.trace_new(tokens)[7:]
            src = chain.open()
            chain.feed(src, tokens[:7])
            dst = chain.fork(src, 7)
            chain.drop(src)
            stranger = chain.open()
            chain.feed(stranger, others)
            self.compare(chain.trace(dst, tokens[7:]), expected, "a fork changes when its source is dropped")

    def test_fork_inherits_the_spec(self) -> None:
        """A fork without a spec inherits the sampling and the prompt length of its source."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 4)[:10]
            expected = chain.trace_new(tokens, HOT, 4)
            src = chain.open(4, HOT)
            chain.feed(src, tokens[:5])
            dst = chain.fork(src, 5)
            self.compare(chain.trace(dst, tokens[5:]), expected[5:], "a fork does not draw as its source would")

    def test_fork_takes_a_spec_of_its_own(self) -> None:
        """A spec in the fork replaces that of the source: sampling, seed and prompt length."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 4)[:10]
            bias = Sampling(temperature=0, logit_bias=((1, 2000.0), (2, 1000.0)), presence_penalty=1500.0)
            for sampling, prompt_length in ((HOT, 10), (GREEDY, 10), (bias, 10), (bias, 3)):
                text = (*tokens[:7], 1, 1, 1)
                expected = chain.trace_new(text, sampling, prompt_length)
                src = chain.open(5, Sampling(temperature=50.0, seed=12))
                chain.feed(src, text[:5])
                dst = chain.fork(src, 5, 0, SequenceSpec(prompt_length=prompt_length, sampling=sampling))
                found = chain.trace(dst, text[5:])
                self.compare(found, expected[5:], f"a fork with a spec of its own does not draw by it: {sampling}")
                chain.drop(src, dst)

    def test_dropped_fork_leaves_its_source(self) -> None:
        """A source continues correctly after its forks are dropped in any order and others take their pages."""
        with self.open_whole() as chain:
            tokens, others = self.make_tokens(chain, 4)[:11], self.make_tokens(chain, 4, 1)
            expected = chain.trace_new(tokens)[6:]
            src = chain.open()
            chain.feed(src, tokens[:6])
            forks = [chain.fork(src, 6), chain.fork(src, 6)]
            chain.edit(*[Drop(seq) for seq in forks])
            stranger = chain.open()
            chain.feed(stranger, others)
            self.compare(chain.trace(src, tokens[6:]), expected, "a sequence changes when its forks are dropped")

    def _write_in_turn(self, chain: Chain, texts: dict[SeqId, tuple[int, ...]]) -> dict[SeqId, list[Answer]]:
        """Append three tokens to each of two sequences: one by one, one by one in the other order, and in a batch."""
        found = {seq: chain.trace(seq, text[:1]) for seq, text in texts.items()}
        for seq in reversed(texts):
            found[seq] += chain.trace(seq, texts[seq][1:2])
        answers = chain.step(*[chain.row(seq, text[2:], *chain.draws(1)) for seq, text in texts.items()]).answers
        for seq, answer in zip(texts, answers, strict=True):
            found[seq].append(answer)
        return found
