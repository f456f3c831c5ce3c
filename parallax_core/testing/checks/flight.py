"""Tests several steps in flight: results not waited for yet must not change."""

from __future__ import annotations

from collections import deque

from parallax_core.api import Answer, Drop, SeqId, StageBatch, StageOutput, Truncate
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.checks.subject import StageSubject
from parallax_core.testing.promise import broken

PENDING = "The result of a step that may still be computing."


class FlightChecks(StageSubject):
    """Steps and edits that come before the result of an earlier step was waited for."""

    def test_steps_in_flight_keep_their_pages(self) -> None:
        """A step in flight is not affected when its sequence is dropped and another one takes the pages."""
        with self.open_whole() as chain:
            first, second = (self.make_tokens(chain, 2, seed)[: chain.max_tokens] for seed in range(2))
            expected = chain.trace_new(first), chain.trace_new(second)
            seq = chain.open()
            outputs = [self._begin(chain, seq, first)]
            chain.edit(Drop(seq))
            for _ in range(3):  # enough that pages which are handed out in turn come round
                seq = chain.open()
                outputs.append(self._begin(chain, seq, second))
                chain.edit(Drop(seq))
            for output, wanted in zip(outputs, (expected[0], *[expected[1]] * 3), strict=True):
                fault = "a step that is in flight changes when its sequence is dropped and others go on"
                self.compare(output.wait().answers, wanted, broken(fault, PENDING))

    def test_chunks_in_flight_equal_chunks_waited_for(self) -> None:
        """All chunks of a prompt are in flight at once."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 2)
            expected = chain.trace_new(tokens)
            size = max(1, min(chain.max_tokens, len(tokens) // 4))
            seq = chain.open()
            outputs = [self._begin(chain, seq, tokens[start : start + size]) for start in range(0, len(tokens), size)]
            found = [answer for output in outputs for answer in output.wait().answers]
            self.compare(found, expected, "chunks in flight at once differ from those waited for one by one")

    def test_decodes_in_flight_equal_decodes_waited_for(self) -> None:
        """Decodes of two sequences take turns, each submitted before the result of the one before is waited for."""
        with self.open_whole() as chain:
            tokens = [self.make_tokens(chain, 2, seed)[:6] for seed in range(2)]
            expected = [chain.trace_new(each) for each in tokens]
            seqs = [chain.open() for _ in tokens]
            pending: deque[tuple[int, StageOutput]] = deque()
            found: list[list[Answer]] = [[], []]
            for turn, index in [(turn, index) for index in range(6) for turn in range(2)]:
                pending.append((turn, self._begin(chain, seqs[turn], tokens[turn][index : index + 1])))
                if len(pending) > 1:
                    which, output = pending.popleft()
                    found[which] += output.wait().answers
            for which, output in pending:
                found[which] += output.wait().answers
            for answers, wanted in zip(found, expected, strict=True):
                self.compare(answers, wanted, "decodes in flight together differ from those waited for one by one")

    def test_edits_after_a_step_do_not_reach_into_it(self) -> None:
        """A fork and a truncation after a step in flight see its tokens, and do not affect that step."""
        with self.open_whole() as chain:
            tokens, others = (self.make_tokens(chain, 3, seed)[:8] for seed in range(2))
            expected = chain.trace_new(tokens)
            seq = chain.open()
            outputs = [self._begin(chain, seq, tokens[:6])]
            back = 5 if chain.can_rewind(seq, 5) else 6
            dst = chain.fork(seq, 6)
            chain.edit(Truncate(seq, back))
            outputs += [self._begin(chain, seq, others[:2]), self._begin(chain, dst, tokens[6:])]
            fault = "steps in flight with a fork and a truncation between them"
            self.compare(outputs[0].wait().answers, expected[:6], f"{fault}: the step before them differs")
            found = outputs[1].wait().answers, outputs[2].wait().answers
            wanted = chain.trace_new((*tokens[:back], *others[:2]))[back:]
            self.compare(found[0], wanted, f"{fault}: the sequence that was truncated differs")
            self.compare(found[1], expected[6:], f"{fault}: the fork differs")

    def test_free_pages_of_steps_in_flight_are_those_of_their_time(self) -> None:
        """Each result reports the free pages after its own step, not those at the time of the wait."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 2)
            size = max(1, min(chain.max_tokens, len(tokens) // 4))
            seq = chain.open()
            outputs, wanted = [], []
            for start in range(0, len(tokens), size):
                outputs.append(self._begin(chain, seq, tokens[start : start + size]))
                wanted.append(chain.free[0])
            found = [output.wait().free for output in outputs]
            assert found == wanted, f"results of steps in flight report {found} free pages instead of {wanted}"

    def _begin(self, chain: Chain, seq: SeqId, tokens: tuple[int, ...]) -> StageOutput:
        """Begin a step of one row on the only stage."""
        row = chain.row(seq, tokens, *chain.draws(len(tokens)))
        output = chain.stages[0].step(StageBatch((row,)))
        chain.account(row)
        return output
