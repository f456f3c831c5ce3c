"""Tests the properties of a stage, and its opening and closing."""

from __future__ import annotations

from collections.abc import Callable

from parallax_core.api import Answer, Open, SequenceSpec, StageBatch
from parallax_core.testing.checks.chain import GREEDY
from parallax_core.testing.checks.subject import StageSubject

MANY = 100


class LifeChecks(StageSubject):
    """Tests of opening and closing, and of several stages at a time."""

    def test_stage_describes_itself(self) -> None:
        """`StageInfo` is complete, and does not change."""
        with self.open_whole() as chain:
            info = chain.first
            assert info.num_layers == self.num_layers, (
                f"its info says that the model has {info.num_layers} layers, not {self.num_layers}"
            )
            assert info.pools, "its info has no pool, so it cannot store tokens"
            assert info.takes == (), "it begins with layer 0, but takes hidden tensors"
            assert info.gives == (), "it ends with the last layer, but gives hidden tensors"
            assert info.weights_version, "its info has no weights_version, so prefixes of other weights would be reused"
            assert info.device, "its info names no device"
            for pool in info.pools:
                assert (pool.window > 0) == (pool.kind == "window"), (
                    f"only a window pool has a window, and it needs one: {pool}"
                )
                assert not pool.rewind or pool.kind == "window", f"only a window pool has rewind: {pool}"
            chain.trace_new(self.make_tokens(chain)[:3])
            assert chain.stages[0].info == info, "its info has changed"

    def test_close_twice_is_harmless(self) -> None:
        """A stage may be closed twice, with open sequences or without."""
        for num_tokens in (0, 2):
            chain = self.open_whole()
            if num_tokens:
                chain.feed(chain.open(), self.make_tokens(chain)[:num_tokens])
            chain.stages[0].close()
            chain.stages[0].close()

    def test_closed_stage_refuses_everything(self) -> None:
        """Edits and steps after close raise an error."""
        chain = self.open_whole()
        seq = chain.open()
        chain.feed(seq, self.make_tokens(chain)[:2])
        chain.stages[0].close()
        assert self._raises(lambda: chain.step(chain.row(seq, (1,)))), "a closed stage accepts a step"
        spec = SequenceSpec(prompt_length=1, sampling=GREEDY)
        assert self._raises(lambda: chain.edit(Open(chain.new_handle(), spec))), "a closed stage accepts an edit"

    def test_two_stages_share_nothing(self) -> None:
        """The same handle on two stages is two sequences, and closing one stage does not affect the other."""
        with self.open_whole() as one:
            tokens, others = (self.make_tokens(one, 4, seed)[:10] for seed in range(2))
            expected = one.trace_new(tokens), one.trace_new(others)
            found: tuple[list[Answer], list[Answer]] = [], []
            with self.open_whole() as two:
                two.new_handle(), two.new_handle()
                first, second = one.open(), two.open()
                assert first == second, "the kit wants the same handle on both"
                for start in range(0, 8, 2):
                    found[0].extend(one.trace(first, tokens[start : start + 2]))
                    found[1].extend(two.trace(second, others[start : start + 2]))
            found[0].extend(one.trace(first, tokens[8:]))
            self.compare(found[0], expected[0], "a sequence differs when another stage has one of the same handle")
            self.compare(found[1], expected[1][:8], "a sequence differs when another stage has one of the same handle")

    def test_step_without_rows_does_nothing(self) -> None:
        """An empty batch has an empty result and leaves the pools unchanged."""
        with self.open_whole() as chain:
            result = chain.stages[0].step(StageBatch(())).wait()
            assert result.answers == (), f"a step without rows has answers: {result.answers}"
            assert list(result.free) == [pool.info.num_pages for pool in chain.pools[0]], (
                "a step without rows takes pages"
            )

    def test_opened_sequence_takes_no_page(self) -> None:
        """Pages are taken by tokens; many sequences may be open and empty."""
        with self.open_whole() as chain:
            for _ in range(MANY):
                chain.open()
            (result,) = chain.run()
            assert [result.free] == chain.free, "empty sequences take pages"

    def _raises(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except Exception:  # noqa: BLE001 -- the contract leaves it to the stage what it raises
            return True
        return False
