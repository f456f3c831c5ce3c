"""Tests that the parts of a split model give the results of the whole model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from parallax_core.api import Answer, Sampling, SeqId, Truncate
from parallax_core.node.executor.compatibility import show_specs
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.checks.subject import StageSubject

PENALISED = Sampling(
    temperature=0.5,
    seed=5,
    logit_bias=((1, 2000.0), (2, 1000.0), (3, 400.0)),
    presence_penalty=1500.0,
    frequency_penalty=10.0,
    repetition_penalty=1.5,
)
"""Two tokens; the drawn one shows which tokens count as output."""
HISTORY = (1, 2, 5, 1, 6, 1, 7, 2)


class SplitChecks(StageSubject):
    """Tests of a model split into several stages."""

    def test_parts_say_how_they_fit_together(self) -> None:
        """Each part names its layers, and its output tensors fit the input of the next part."""
        for cuts, chain in self._open_splits():
            bounds = [0, *cuts, self.num_layers]
            infos = [stage.info for stage in chain.stages]
            layers = [(info.layers.start, info.layers.stop) for info in infos]
            assert layers == list(pairwise(bounds)), f"split at {cuts}: the layers are {layers}"
            assert {info.num_layers for info in infos} == {self.num_layers}, (
                "parts state different numbers of layers of the model"
            )
            assert len({info.vocab_size for info in infos}) == 1, "parts state different sizes of the vocabulary"
            assert not infos[0].takes, "the first part takes hidden tensors"
            assert not infos[-1].gives, "the last part gives hidden tensors"
            for one, other in pairwise(infos):
                assert one.gives, f"split at {cuts}: a part before the last one gives no hidden tensors"
                sizes = [[(spec.name, spec.token_shape) for spec in each] for each in (one.gives, other.takes)]
                assert sizes[0] == sizes[1], (
                    f"split at {cuts}: a part gives {show_specs(one.gives)}, but the next one takes "
                    f"{show_specs(other.takes)}"
                )

    def test_weights_are_named_alike_in_every_split(self) -> None:
        """A layer has the same digest in every stage; stages without digests are not compared."""
        with self.open_whole() as whole:
            expected = whole.first.weights_parts
        for cuts, chain in self._open_splits():
            for stage in chain.stages:
                found = stage.info.weights_parts
                others = [part for part in found if found[part] != expected.get(part)]
                assert not others, f"split at {cuts}: the digest of {others[0]} differs from that in the whole model"

    def test_hidden_tensors_are_as_described(self) -> None:
        """A part before the last one returns the tensors in its info, one row per token in order, and no answers."""
        for cuts, chain in self._open_splits():
            tokens = self.make_tokens(chain, 4)[:3]
            results = chain.run(*[chain.row(chain.open(), tokens[: size + 1], *chain.draws(1)) for size in range(3)])
            for stage, result in zip(chain.stages[:-1], results, strict=False):
                found = [(tensor.dtype, tensor.shape) for tensor in result.tensors]
                wanted = [(spec.dtype, (6, *spec.token_shape)) for spec in stage.info.gives]
                assert found == wanted, f"split at {cuts}: hidden tensors of 6 tokens are {found} instead of {wanted}"
                assert result.answers == (), f"split at {cuts}: a part before the last one returns answers"

    def test_every_split_equals_the_whole(self) -> None:
        """A prompt in chunks gives the same tokens for every split of the model."""
        tokens, expected = self._trace_whole()
        for cuts, chain in self._open_splits():
            for size in {1, 3, chain.max_tokens}:
                seq = chain.open()
                found = chain.trace(seq, tokens, size)
                chain.drop(seq)
                self.compare(found, expected, f"split at {cuts}, chunks of {size}: not the tokens of the whole")

    def test_split_draws_as_the_whole(self) -> None:
        """Seeds, penalties and the prompt length reach the part that draws."""
        hot = Sampling(temperature=50.0, seed=2**33 + 1)
        tokens, expected = self._trace_whole(hot)
        with self.open_whole() as whole:
            expected += whole.trace_new(HISTORY, PENALISED, 4)
        for cuts, chain in self._open_splits():
            found = [*chain.trace_new(tokens, hot, 4), *chain.trace_new(HISTORY, PENALISED, 4)]
            self.compare(found, expected, f"split at {cuts}: penalties and seeds do not draw as in the whole")

    def test_split_batches_and_forks_as_the_whole(self) -> None:
        """Batches, forks and truncations have the same effect on every part."""
        with self.open_whole() as whole:
            expected = self._run_mixture(whole)
        for cuts, chain in self._open_splits():
            self.compare(self._run_mixture(chain), expected, f"split at {cuts}: batches and forks differ")

    def test_free_pages_of_every_part_are_those_of_the_account(self) -> None:
        """Each part reports the free pages of its own pools."""
        for cuts, chain in self._open_splits():
            for number in range(4):
                results = chain.run(chain.row(chain.open(), self.make_tokens(chain, 4)[: number + 1]))
                found = [result.free for result in results]
                assert found == chain.free, f"split at {cuts}: free pages are {found} instead of {chain.free}"

    def _trace_whole(self, sampling: Sampling | None = None) -> tuple[tuple[int, ...], list[Answer]]:
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 2)
            return tokens, chain.trace_new(tokens, sampling, 4) if sampling else chain.trace_new(tokens)

    def _open_splits(self) -> Iterator[tuple[tuple[int, ...], Chain]]:
        for cuts in self.list_splits():
            with self.open_parts(cuts) as chain:
                yield cuts, chain

    def _run_mixture(self, chain: Chain) -> list[Answer]:
        """Run batches with forks between them, and return all that was drawn."""
        texts = [self.make_tokens(chain, 4, seed)[:8] for seed in range(3)]
        one, two = chain.open(), chain.open()
        found = self._step(chain, {one: texts[0][:5], two: texts[1][:3]})
        three = chain.fork(one, 5)
        found += self._step(chain, {two: texts[1][3:5], three: texts[2][5:7], one: texts[0][5:6]})
        chain.edit(Truncate(three, 7), Truncate(one, 6))
        chain.drop(two)
        found += self._step(chain, {three: texts[2][7:], one: texts[0][6:]})
        chain.drop(one, three)
        return found

    def _step(self, chain: Chain, texts: dict[SeqId, tuple[int, ...]]) -> list[Answer]:
        rows = [chain.row(seq, tokens, *chain.draws(len(tokens))) for seq, tokens in texts.items()]
        return list(chain.step(*rows).answers)
