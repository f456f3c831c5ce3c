"""Tests draws: seeds, choices, filters and noise."""

from __future__ import annotations

from parallax_core.api import Draft, Draw, Drawn, Sampling, draw, draw_key, gumbel, hash32
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.checks.subject import StageSubject

HOT = 1e7
"""A temperature at which only the noise decides."""
SEEDS = (0, 1, 2**32 - 1, 2**32, 0x0123456789ABCDEF, 2**64 - 1)
CHOICES = (0, 1, 5)
CLEAR = 1e-3
"""How far apart the two best noises must be."""


class DrawChecks(StageSubject):
    """Tests of `Draw` through the stage contract."""

    def test_noise_is_that_of_the_reference(self) -> None:
        """At a very high temperature the token with the largest noise is drawn: of this seed, choice and position."""
        with self.open_whole() as chain:
            for length in (1, 2, 7):
                for seed in SEEDS:
                    for choice in CHOICES:
                        self._check_noise(chain, length, seed, choice)

    def test_temperature_zero_does_not_draw(self) -> None:
        """Seeds, choices and filters make no difference at temperature 0."""
        with self.open_whole() as chain:
            prompt = self.make_tokens(chain, 2)[:5]
            expected = chain.draw_after(prompt)
            for seed in range(5):
                sampling = Sampling(temperature=0, seed=seed, top_k=5 - seed, top_p=0.5, min_p=0.1)
                found = chain.draw_after(prompt, sampling=sampling, choice=seed)
                assert found == expected, (
                    f"temperature 0 draws {found.tokens} with seed {seed}, {expected.tokens} without"
                )

    def test_top_k_of_one_takes_the_best(self) -> None:
        """Whatever temperature and seed, top_k 1 leaves one token: that of temperature 0."""
        with self.open_whole() as chain:
            prompt = self.make_tokens(chain, 2)[:5]
            best = chain.draw_after(prompt).tokens
            for seed in range(8):
                found = chain.draw_after(prompt, sampling=Sampling(temperature=HOT, seed=seed, top_k=1)).tokens
                assert found == best, f"top_k 1 draws {found} with seed {seed}; the best token is {best}"

    def test_top_k_keeps_so_many(self) -> None:
        """At a very high temperature, top_k eventually draws each of the k best tokens, and no other."""
        with self.open_whole() as chain:
            prompt = self.make_tokens(chain, 2)[:5]
            best = self._list_best(chain, prompt, 3)
            drawn = set[int]()
            for seed in range(40):
                drawn.update(chain.draw_after(prompt, sampling=Sampling(temperature=HOT, seed=seed, top_k=3)).tokens)
            assert drawn == best, f"top_k 3 draws {sorted(drawn)}; the three best tokens are {sorted(best)}"

    def test_tiny_top_p_and_full_min_p_take_the_best(self) -> None:
        """A top_p near 0 and a min_p of 1 leave the best token only."""
        with self.open_whole() as chain:
            prompt = self.make_tokens(chain, 2)[:5]
            best = chain.draw_after(prompt).tokens
            for seed in range(8):
                for sampling in (Sampling(seed=seed, top_p=1e-6), Sampling(seed=seed, min_p=1.0)):
                    found = chain.draw_after(prompt, sampling=sampling).tokens
                    assert found == best, f"{sampling} draws {found}; the best token is {best}"

    def test_seed_draws_the_same_in_a_batch(self) -> None:
        """Each row of a batch draws by its own seed and sampling, as it does alone."""
        with self.open_whole() as chain:
            texts = [self.make_tokens(chain, 4, seed)[:2] for seed in range(3)]
            samplings = [Sampling(temperature=3.0, seed=seed) for seed in (7, 8, 2**40)]
            pairs = list(zip(texts, samplings, strict=True))
            alone = [chain.draw_after(text, sampling=sampling) for text, sampling in pairs]
            rows = [chain.row(chain.open(2, sampling), text, Draw(1)) for text, sampling in pairs]
            found = chain.step(*rows).answers
            self.compare(found, alone, "rows with seeds of their own draw otherwise in a batch than alone")

    def test_rows_of_a_batch_have_their_own_sampling(self) -> None:
        """Greedy, hot, biased and filtered rows in one batch do not mix."""
        with self.open_whole() as chain:
            text = self.make_tokens(chain, 4)[:1]
            samplings = [
                Sampling(temperature=0),
                Sampling(temperature=HOT, seed=3),
                Sampling(temperature=0, logit_bias=((5, 2000.0),)),
                Sampling(temperature=HOT, seed=4, top_k=1),
            ]
            alone = [chain.draw_after(text, sampling=sampling) for sampling in samplings]
            found = chain.step(*[chain.row(chain.open(1, sampling), text, Draw(0)) for sampling in samplings]).answers
            self.compare(found, alone, "rows with samplings of their own draw otherwise in a batch than alone")

    def test_seeds_differ(self) -> None:
        """Different seeds, also above 32 bits, sometimes draw different tokens."""
        with self.open_whole() as chain:
            prompt = self.make_tokens(chain, 2)[:3]
            for seeds in (range(12), [number << 32 for number in range(12)]):
                drawn = {
                    chain.draw_after(prompt, sampling=Sampling(temperature=HOT, seed=seed)).tokens for seed in seeds
                }
                assert len(drawn) > 3, f"seeds {seeds[0]} to {seeds[-1]} draw only {drawn}"  # noqa: PLR2004

    def test_draw_depends_on_seed_and_position_only(self) -> None:
        """A sequence draws the same tokens in chunks, after a fork, and after other sequences."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 4)[:8]
            sampling = Sampling(temperature=3.0, seed=99)
            expected = chain.trace_new(tokens, sampling, 2)
            seq = chain.open(2, sampling)
            found = chain.trace(seq, tokens[:3], 2)
            dst = chain.fork(seq, 3)
            chain.trace_new(tokens[:2], Sampling(seed=1))
            found += chain.trace(dst, tokens[3:], 1)
            self.compare(found, expected, "a draw depends on more than seed, choice, position and logits")

    def test_count_draws_what_forks_with_choices_draw(self) -> None:
        """The j-th draw of a count equals the draw of a fork, or new sequence, with a choice j higher."""
        with self.open_whole() as chain:
            tokens = self.make_tokens(chain, 4)[:4]
            sampling = Sampling(temperature=HOT, seed=21)
            for choice in (0, 2):
                many = chain.draw_after(tokens, sampling=sampling, choice=choice, draw=Draw(-1, 4)).tokens
                src = chain.open(4, sampling, 9)
                chain.feed(src, tokens[:3])
                forks = [chain.fork(src, 3, choice + number) for number in range(4)]
                answers = [chain.feed(fork, tokens[3:], Draw(-1))[0] for fork in forks]
                found = tuple(token for answer in answers if isinstance(answer, Drawn) for token in answer.tokens)
                chain.drop(src, *forks)
                assert found == many, f"forks of choices from {choice} draw {found}, one draw of four gives {many}"
                alone = [chain.draw_after(tokens, sampling=sampling, choice=choice + number) for number in range(4)]
                found = tuple(token for answer in alone for token in answer.tokens)
                assert found == many, f"sequences of choices from {choice} draw {found}, one draw of four gives {many}"
                assert len(set(many)) > 1, "every choice draws the same token"

    def _check_noise(self, chain: Chain, length: int, seed: int, choice: int) -> None:
        key = draw_key(seed, length, choice)
        noise = sorted(gumbel(hash32(key, token)) for token in range(chain.first.vocab_size))
        if noise[-1] - noise[-2] < CLEAR:
            return
        sampling = Sampling(temperature=HOT, seed=seed)
        expected = draw([0.0] * chain.first.vocab_size, Draft(sampling, range(length), (), choice))
        tokens = self.make_tokens(chain, 2)[:length]
        found = chain.draw_after(tokens, sampling=sampling, choice=choice).tokens
        assert found == (expected,), (
            f"seed {seed}, choice {choice}, position {length}: {found} is drawn instead of {expected};"
            " see parallax_core.sampling.draw"
        )

    def _list_best(self, chain: Chain, prompt: tuple[int, ...], num: int) -> set[int]:
        """Return the best tokens, found one after the other by forbidding those before."""
        found: list[int] = []
        for _ in range(num):
            banned = tuple((token, float("-inf")) for token in found)
            found += chain.draw_after(prompt, sampling=Sampling(temperature=0, logit_bias=banned)).tokens
        return set(found)
