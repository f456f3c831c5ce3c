"""Tests leases, where stages serve through them: ranges, shares, independence and closing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Protocol, cast

from parallax_core.api import (
    Answer,
    BackendFailed,
    LayerRange,
    Leasing,
    Open,
    SequenceSpec,
    Stage,
    StageBatch,
    StageInfo,
)
from parallax_core.testing.checks.chain import GREEDY, Chain
from parallax_core.testing.checks.subject import StageSubject
from parallax_core.testing.promise import broken, expect, expect_hint

HOLDS = "Such a stage holds weights and no pages."
EXACT = "It computes exactly what a stage that loaded only these layers would"
ALONE = "Several leases share nothing but weights, also if they have the same layers"
RETURNS = "Closing a lease returns its memory and its share."
CLOSES = "Closing the stage closes all its leases."
RANGES = "if the stage does not have these layers, or the share is out of range."
SHARES = "with a hint, if less than the share is free"
DESCRIBES = "Its `StageInfo` describes a lease of all its layers with the whole memory"
FIELDS = (
    "layers",
    "num_layers",
    "vocab_size",
    "max_batch_tokens",
    "dtype",
    "weight_bytes",
    "weights_version",
    "weights_parts",
    "capabilities",
    "takes",
    "gives",
)
"""The properties of a lease that do not depend on its memory."""
WRONG_SHARES = (0.0, -0.5, 1.5, math.nan)
PARTS = 4
ROUNDS = 20


class LeasingStage(Stage, Leasing, Protocol):
    """A stage that serves through leases."""


class LeaseChecks(StageSubject):
    """Tests of stages that serve through leases; of a backend without them, nothing."""

    def open_leased(self, layers: LayerRange | None) -> Stage | None:  # noqa: ARG002 -- for those who can
        """Return a new stage of some or all layers that serves through leases; None without leases."""
        return None

    def test_leased_stage_describes_a_lease_of_everything(self) -> None:
        """It says that it can be leased, and otherwise what a lease of all layers with the whole memory says."""
        with self._open_holder(None) as holder:
            if holder is None:
                return
            assert isinstance(holder, Leasing), "the stage has the capability leases, and no method lease"
            lease = holder.lease(holder.info.layers, 1.0)
            for name in (*FIELDS, "pools"):
                found, expected = getattr(holder.info, name), getattr(lease.info, name)
                if name == "capabilities":
                    assert "leases" not in expected, "a lease says that it can be leased"
                    expected |= {"leases"}
                fault = f"{name} of the stage is {found}, and of a lease of everything {expected}"
                assert found == expected, broken(fault, DESCRIBES)

    def test_leased_stage_has_no_sequences(self) -> None:
        """Edits and steps of the stage itself raise `BackendFailed`."""
        with self._open_holder(None) as holder:
            if holder is None:
                return
            spec = SequenceSpec(prompt_length=1, sampling=GREEDY)
            with expect(BackendFailed, "an edit of a stage that serves through leases", HOLDS):
                holder.edit([Open(Chain([holder]).new_handle(), spec)])
            with expect(BackendFailed, "a step of a stage that serves through leases", HOLDS):
                holder.step(StageBatch(())).wait()

    def test_lease_describes_its_layers(self) -> None:
        """The properties of a lease are those of a stage that loaded just its layers."""
        for layers in self._list_ranges():
            alone = self.open_stage(layers)
            expected = alone.info
            alone.close()
            for held in (None, layers):
                with self._open_holder(held) as holder:
                    if holder is None:
                        return
                    self._check_info(holder.lease(layers, 1.0).info, expected)

    def test_lease_equals_the_stage_of_its_layers(self) -> None:
        """Leases of the parts of a model draw exactly what stages that loaded these parts draw."""
        for cuts in [(), *self.list_splits()]:
            with self._open_holder(None) as holder:
                if holder is None:
                    return
                with self.open_parts(cuts) as alone, self._lease_parts(holder, cuts, 1.0) as chain:
                    tokens = self._make_tokens(alone, chain)
                    found, expected = (each.trace_new(tokens) for each in (chain, alone))
                    fault = f"leases split at {cuts} draw {found} instead of {expected}"
                    assert found == expected, broken(fault, EXACT)

    def test_chains_of_leases_equal_the_whole(self) -> None:
        """Leases of one stage, one after the other, are the whole model, in chunks of any size."""
        for cuts in self.list_splits():
            with self._open_holder(None) as holder:
                if holder is None:
                    return
                with self.open_whole() as whole, self._lease_parts(holder, cuts, 1.0) as chain:
                    tokens = self._make_tokens(whole, chain)
                    expected = whole.trace_new(tokens)
                    for size in (1, 3, chain.max_tokens):
                        seq = chain.open()
                        found = chain.trace(seq, tokens, size)
                        chain.drop(seq)
                        self.compare(found, expected, f"leases split at {cuts}, chunks of {size}: not the whole")

    def test_leases_share_nothing(self) -> None:
        """The same handle in two leases is two sequences, whose steps may alternate."""
        for cuts in [(), *self.list_splits()]:
            with self._open_holder(None) as holder:
                if holder is None:
                    return
                with self._lease_parts(holder, (), 0.5) as one, self._lease_parts(holder, cuts, 0.5) as two:
                    texts = [self._make_tokens(one, two, seed=seed)[:8] for seed in range(2)]
                    expected = one.trace_new(texts[0]), two.trace_new(texts[1])
                    found = self._alternate(one, two, texts)
                    fault = f"a sequence differs when steps of another lease, split at {cuts}, come between"
                    for pair in zip(found, expected, strict=True):
                        self.compare(*pair, broken(fault, ALONE))

    def test_leases_have_pages_of_their_own(self) -> None:
        """What one lease takes and frees does not change the free pages of another."""
        with self._open_holder(None) as holder:
            if holder is None:
                return
            one, two = (Chain([holder.lease(holder.info.layers, 0.5)]) for _ in range(2))
            tokens = self._make_tokens(one, two, sequences=4)
            for number in range(1, 4):
                one.feed(one.open(), tokens[: 2 * number])
                (found,) = two.run()
                assert [found.free] == two.free, broken(f"{found.free} pages are free, not {two.free[0]}", ALONE)
                two.feed(two.open(), tokens)

    def test_share_is_a_share_of_the_memory(self) -> None:
        """Half of the memory has half of the pages, and two halves fit."""
        with self._open_holder(None) as holder:
            if holder is None:
                return
            whole = holder.lease(holder.info.layers, 1.0)
            most = [pool.num_pages for pool in whole.info.pools]
            whole.close()
            for lease in [holder.lease(holder.info.layers, 0.5) for _ in range(2)]:
                pages = [pool.num_pages for pool in lease.info.pools]
                fault = f"half of the memory has {pages} pages, and the whole {most}"
                fits = all(abs(half - full / 2) <= 1 for half, full in zip(pages, most, strict=True))
                assert fits, broken(fault, "the share of the memory for KV pages")

    def test_shares_beyond_the_memory_are_refused(self) -> None:
        """Four quarters are taken, and no more until a lease is closed."""
        with self._open_holder(None) as holder:
            if holder is None:
                return
            leases = [holder.lease(holder.info.layers, 1 / PARTS) for _ in range(PARTS)]
            with expect_hint("a lease of memory that other leases have", SHARES):
                holder.lease(holder.info.layers, 1 / PARTS)
            leases[1].close()
            leases[1].close()
            with expect_hint("a lease of more memory than is free", SHARES):
                holder.lease(holder.info.layers, 2 / PARTS)
            holder.lease(holder.info.layers, 1 / PARTS)

    def test_wrong_leases_are_refused(self) -> None:
        """Other layers than those loaded, no layers, and shares out of range raise ValueError, and take nothing."""
        for held in self._list_ranges():
            with self._open_holder(held) as holder:
                if holder is None:
                    return
                start, stop = held.start, held.stop
                for pair in ((start - 1, stop), (start, stop + 1), (start, start), (stop, start)):
                    with expect(ValueError, f"a lease of layers {pair} of a stage of {held}", RANGES):
                        holder.lease(LayerRange(*pair), 0.5)
                for share in WRONG_SHARES:
                    with expect(ValueError, f"a lease with a share of {share}", RANGES):
                        holder.lease(held, share)
                holder.lease(held, 1.0)

    def test_closed_lease_gives_everything_back(self) -> None:
        """A lease may be closed with open sequences; the next one has all pages, and none of the sequences."""
        with self._open_holder(None) as holder:
            if holder is None:
                return
            for _ in range(ROUNDS):
                chain = Chain([holder.lease(holder.info.layers, 1.0)])
                (result,) = chain.run()
                assert [result.free] == chain.free, broken(f"only {result.free} pages of a lease are free", RETURNS)
                chain.feed(chain.open(), self.make_tokens(chain, 2))
                chain.stages[0].close()
                with expect(BackendFailed, "a step of a closed lease", RETURNS):
                    chain.run()

    def test_leases_close_in_any_order(self) -> None:
        """A lease goes on when another one is closed."""
        for newest in (False, True):
            with self._open_holder(None) as holder:
                if holder is None:
                    return
                chains = [Chain([holder.lease(holder.info.layers, 0.5)]) for _ in range(2)]
                tokens = self._make_tokens(*chains)[:8]
                expected = chains[0].trace_new(tokens)
                seqs = [chain.open() for chain in chains]
                found = [chain.trace(seq, tokens[:4]) for chain, seq in zip(chains, seqs, strict=True)]
                chains[newest].stages[0].close()
                found[not newest] += chains[not newest].trace(seqs[not newest], tokens[4:])
                fault = "a sequence differs when another lease was closed"
                self.compare(found[not newest], expected, broken(fault, ALONE))

    def test_closed_stage_has_no_leases(self) -> None:
        """Closing the stage closes its leases; closing them or the stage again is harmless."""
        with self._open_holder(None) as holder:
            if holder is None:
                return
            chains = [Chain([holder.lease(holder.info.layers, 0.5)]) for _ in range(2)]
            chains[0].feed(chains[0].open(), self.make_tokens(chains[0])[:2])
            holder.close()
            for chain in chains:
                with expect(BackendFailed, "a step of a lease whose stage is closed", CLOSES):
                    chain.run()
                chain.stages[0].close()
            with expect(BackendFailed, "a lease of a closed stage", "BackendFailed: if the stage is closed."):
                holder.lease(holder.info.layers, 0.5)
            holder.close()

    @contextmanager
    def _open_holder(self, layers: LayerRange | None) -> Iterator[LeasingStage | None]:
        """Yield a stage that serves through leases, or None without leases; close it at the end."""
        stage = self.open_leased(layers)
        try:
            yield cast("LeasingStage | None", stage)  # a test of its own makes sure of the protocol
        finally:
            if stage is not None:
                stage.close()

    @contextmanager
    def _lease_parts(self, holder: Leasing, cuts: Sequence[int], memory: float) -> Iterator[Chain]:
        """Yield leases of the parts of the model that begin at ``cuts``, each with its layers' share of ``memory``."""
        parts = [LayerRange(*pair) for pair in pairwise([0, *cuts, self.num_layers])]
        with Chain([holder.lease(part, memory * len(part) / self.num_layers) for part in parts]) as chain:
            yield chain

    def _list_ranges(self) -> list[LayerRange]:
        """Return all layers, and the parts of the first split."""
        bounds = [[0, *cuts, self.num_layers] for cuts in [(), *self.list_splits()[:1]]]
        return [LayerRange(*pair) for each in bounds for pair in pairwise(each)]

    def _check_info(self, found: StageInfo, expected: StageInfo) -> None:
        layers = expected.layers
        for name in FIELDS:
            pair = getattr(found, name), getattr(expected, name)
            fault = f"{name} of a lease of layers {layers.start}-{layers.stop} is {pair[0]}, not {pair[1]}"
            assert pair[0] == pair[1], broken(fault, EXACT)

    def _make_tokens(self, one: Chain, two: Chain, *, sequences: int = 2, seed: int = 0) -> tuple[int, ...]:
        """Return as many tokens as each of ``sequences`` sequences may have on both chains."""
        return min((self.make_tokens(chain, sequences, seed) for chain in (one, two)), key=len)

    def _alternate(self, one: Chain, two: Chain, texts: Sequence[tuple[int, ...]]) -> list[list[Answer]]:
        """Trace two sequences of the same handle by turns, two tokens at a time."""
        seqs, found = (one.open(), two.open()), list[list[Answer]]([[], []])
        assert seqs[0] == seqs[1], "the kit wants the same handle in both"
        for start in range(0, len(texts[0]), 2):
            for answers, chain, seq, text in zip(found, (one, two), seqs, texts, strict=True):
                answers.extend(chain.trace(seq, text[start : start + 2]))
        return found
