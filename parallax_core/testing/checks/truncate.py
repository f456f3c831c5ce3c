"""Tests truncation: removed and kept tokens, and the limits."""

from __future__ import annotations

from parallax_core.api import Fork, Sampling, Truncate, Unsupported
from parallax_core.testing.checks.subject import StageSubject
from parallax_core.testing.promise import expect

BEYOND = "if a length exceeds the sequence's"
TOO_FAR = "if the model's state cannot be rewound to a length"
COUNTING = Sampling(temperature=0, logit_bias=((1, 2000.0), (2, 1000.0)), frequency_penalty=600.0)


class TruncateChecks(StageSubject):
    """A truncated sequence has the state it had at that length."""

    def test_truncated_sequence_goes_on_as_if_nothing_had_been(self) -> None:
        """After truncation to every length that the pools allow, the continuation is the same as before."""
        with self.open_whole() as chain:
            tokens, others = self.make_tokens(chain, 3), self.make_tokens(chain, 3, 1)
            for end in sorted({len(tokens) // 2, len(tokens) - 2}):
                for length in range(end + 1):
                    seq = chain.open()
                    chain.feed(seq, (*tokens[:length], *others[length:end]))
                    if chain.can_rewind(seq, length):
                        chain.edit(Truncate(seq, length))
                        found = chain.trace(seq, tokens[length:])
                        expected = chain.trace_new(tokens)[length:]
                        self.compare(found, expected, f"a sequence of {end} tokens cut to {length} goes on otherwise")
                    chain.drop(seq)

    def test_truncate_forgets_the_output(self) -> None:
        """Output removed by a truncation does not count for penalties."""
        with self.open_whole() as chain:
            tokens = (*self.make_tokens(chain, 2)[:3], 1, 1, 1)
            seq = chain.open(3, COUNTING)
            chain.feed(seq, tokens)
            back = next(length for length in range(3, 7) if chain.can_rewind(seq, length))
            chain.edit(Truncate(seq, back))
            if back < len(tokens):
                found = chain.trace(seq, tokens[back : back + 1])
                expected = chain.trace_new(tokens, COUNTING, 3)[back : back + 1]
                self.compare(found, expected, "tokens forgotten by a truncation still count for penalties")

    def test_truncate_at_the_end_changes_nothing(self) -> None:
        """Truncating a sequence to its own length is allowed for every pool and has no effect."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 2)[:9]
            seq = chain.open()
            chain.feed(seq, tokens[:6])
            chain.edit(Truncate(seq, 6), Truncate(seq, 6))
            expected = chain.trace_new(tokens)[6:]
            self.compare(chain.trace(seq, tokens[6:]), expected, "a truncation at the end changes what follows")

    def test_length_beyond_the_sequence_is_refused(self) -> None:
        """Fork and Truncate beyond the end raise ValueError, and the sequence stays usable."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 2)[:8]
            seq = chain.open()
            chain.feed(seq, tokens[:5])
            for edit in (Truncate(seq, 6), Fork(seq, chain.new_handle(), 6), Truncate(seq, 10**6)):
                with expect(ValueError, f"{edit} of a sequence of 5 tokens", BEYOND):
                    chain.stages[0].edit([edit])
            expected = chain.trace_new(tokens)[5:]
            self.compare(chain.trace(seq, tokens[5:]), expected, "an edit that was refused changed its sequence")

    def test_length_a_pool_cannot_go_back_to_is_refused(self) -> None:
        """Fork and Truncate further back than a window or state pool allows raise Unsupported and change nothing."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 3)
            cut = len(tokens) - 2
            seq = chain.open()
            chain.feed(seq, tokens[:cut])
            for length in range(cut):
                if not chain.can_rewind(seq, length):
                    for edit in (Truncate(seq, length), Fork(seq, chain.new_handle(), length)):
                        with expect(Unsupported, f"{edit} of a sequence of {cut} tokens", TOO_FAR):
                            chain.stages[0].edit([edit])
            expected = chain.trace_new(tokens)[cut:]
            self.compare(chain.trace(seq, tokens[cut:]), expected, "an edit that was refused changed its sequence")
