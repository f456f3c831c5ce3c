"""Tests pages: the stage agrees with `PagePool`, pages are freed, and a full pool changes nothing."""

from __future__ import annotations

import random

from parallax_core.api import Drop, Fork, OutOfPages, SeqId, StageResult, Truncate
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.checks.subject import StageSubject
from parallax_core.testing.promise import broken, expect

FREE = "Free pages of each pool after the step; if they differ from the head's ledger, the stage is lost."
UNMOVED = "A step that raises leaves every sequence at its length before the step."
ROUNDS = 150


class PoolChecks(StageSubject):
    """The pages of a stage are those that `PagePool` assigns for the same edits and rows."""

    def test_free_pages_are_those_of_the_account(self) -> None:
        """Through opens, forks, truncations, drops and steps, the free pages of every pool are those of `PagePool`."""
        with self.open_whole() as chain:
            source = random.Random(7)  # noqa: S311 -- a walk through the pools
            tokens = self.make_tokens(chain, 4)
            seqs = [chain.open()]
            for number in range(ROUNDS):
                self._edit_somehow(chain, seqs, source)
                seq = source.choice(seqs)
                size = min(source.randint(1, chain.max_tokens), len(tokens) - chain.lengths[seq])
                if size > 0 and self._has_room(chain, seq, size):
                    start = chain.lengths[seq]
                    self._check_free(chain, chain.run(chain.row(seq, tokens[start : start + size])), number)

    def test_pages_of_dropped_sequences_come_back(self) -> None:
        """After twice as many sequences, forks and truncations as fit at once, every page is free again."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 2)
            rounds = 2 + 2 * min(*(pool.info.num_pages for pool in chain.pools[0]), ROUNDS)
            before = chain.free
            try:
                for _ in range(rounds):
                    self._come_and_go(chain, tokens)
            except OutOfPages as error:
                raise AssertionError(broken(f"pages of dropped sequences do not come back ({error})", FREE)) from error
            assert chain.free == before, "the reference account has lost pages"
            seq = chain.open()
            self._check_free(chain, chain.run(chain.row(seq, tokens[:1])), rounds)

    def test_full_pool_refuses_a_fork_and_changes_nothing(self) -> None:
        """Without a free page for the copy of the last page, Fork raises OutOfPages; after a Drop it works."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 2)[:8]
            expected = chain.trace_new(tokens)
            src, others = self._fill(chain, tokens[0])
            dst = chain.new_handle()
            if self._needs_page(chain, 1):
                with expect(OutOfPages, "a fork that needs a page of a full pool", FREE):
                    chain.stages[0].edit([Fork(src, dst, 1)])
            chain.drop(*others)
            chain.edit(Fork(src, dst, 1))
            self._check_free(chain, chain.run(chain.row(dst, tokens[1:2])), "after a fork was refused")
            for seq in (src, dst):
                start = chain.lengths[seq]
                found = chain.trace(seq, tokens[start:])
                self.compare(found, expected[start:], "a fork that was refused for want of pages changed something")

    def test_full_pool_refuses_a_step_and_changes_nothing(self) -> None:
        """Without enough pages for all rows, the step raises OutOfPages, and no sequence has changed."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 2)[:8]
            expected = chain.trace_new(tokens)
            src, others = self._fill(chain, tokens[0])
            seq = chain.open()
            with expect(OutOfPages, "a step that needs a page of a full pool", UNMOVED):
                chain.step(chain.row(src, tokens[1:2]), chain.row(seq, tokens[:2]))
            with expect(OutOfPages, "a step that needs a page of a full pool", UNMOVED):
                chain.step(chain.row(seq, tokens[:2]), chain.row(src, tokens[1:2]))
            chain.drop(*others)
            self.compare(chain.trace(src, tokens[1:]), expected[1:], "a step refused for want of pages moved a row")
            self.compare(chain.trace(seq, tokens), expected, "a step refused for want of pages moved a row")
            self._check_free(chain, chain.run(), "after one was refused for want of pages")

    def _fill(self, chain: Chain, token: int) -> tuple[SeqId, list[SeqId]]:
        """Open sequences of one token until some pool is full; return the first, and the others."""
        seqs: list[SeqId] = []
        while room := min(pool.num_free for pools in chain.pools for pool in pools):
            fresh = [chain.open() for _ in range(min(room, chain.max_tokens))]
            chain.step(*[chain.row(seq, [token]) for seq in fresh])
            seqs += fresh
        return seqs[0], seqs[1:]

    def _needs_page(self, chain: Chain, length: int) -> bool:
        """Whether a fork needs a page of a pool without free pages."""
        return any(
            not pool.num_free and (not pool.info.shares or pool.info.kind == "state" or length % pool.info.page_size)
            for pools in chain.pools
            for pool in pools
        )

    def _come_and_go(self, chain: Chain, tokens: tuple[int, ...]) -> None:
        seq = chain.open()
        chain.feed(seq, tokens)
        fork = chain.fork(seq, len(tokens))
        chain.edit(Truncate(fork, len(tokens)))
        chain.drop(seq, fork)

    def _edit_somehow(self, chain: Chain, seqs: list[SeqId], source: random.Random) -> None:
        seq = source.choice(seqs)
        length = chain.lengths[seq] - source.choice([0, 0, 0, 1, 2, 5])
        kind = source.choice(["open", "fork", "truncate", "drop"])
        if (kind == "drop" and len(seqs) > 1) or len(seqs) > 3:  # noqa: PLR2004 -- as many as surely fit
            seqs.remove(seq)
            chain.edit(Drop(seq))
        elif kind == "open":
            seqs.append(chain.open())
        elif length < 0 or not chain.can_rewind(seq, length):
            return
        elif kind == "fork" and self._has_spare(chain, seq):
            seqs.append(chain.fork(seq, length))
        elif kind == "truncate":
            chain.edit(Truncate(seq, length))

    def _has_room(self, chain: Chain, seq: SeqId, size: int) -> bool:
        return all(pool.num_needed(seq, size) <= pool.num_free for pools in chain.pools for pool in pools)

    def _has_spare(self, chain: Chain, seq: SeqId) -> bool:
        return all(len(pool.pages(seq)[1]) <= pool.num_free for pools in chain.pools for pool in pools)

    def _check_free(self, chain: Chain, results: list[StageResult], when: object) -> None:
        found = [result.free for result in results]
        fault = f"step {when}: the stage has {found} pages free, and the account {chain.free}"
        assert found == chain.free, broken(fault, FREE)
