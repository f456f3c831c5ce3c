"""Attention over pages, and whole layers: compiled and in plain torch, against double precision without pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_backend_torch.kernels import layer, library, linear, parts
from parallax_backend_torch.kernels.attention import Pool, Rows, Rule, attend, store

pytestmark = pytest.mark.usefixtures("one_thread")


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Batch:
    """Rows of sequences whose pages lie about in a pool; what belongs to nobody there is not a number."""

    def __init__(self, spans: Sequence[tuple[int, int]], page_size: int = 16, shape: tuple[int, int] = (2, 16)) -> None:
        needs = [-(-(start + length) // page_size) for start, length in spans]
        order = torch.randperm(sum(needs) + 2, generator=torch.Generator().manual_seed(1)).int()
        tables = order[: sum(needs)].split(needs) if needs else ()
        offsets = torch.tensor([sum(needs[:i]) for i in range(len(needs))])
        starts, lengths = torch.tensor(spans).T
        self.spans, self.page_size = spans, page_size
        self.rows = Rows(order, offsets.int(), starts.int().contiguous(), lengths.int().contiguous(), page_size)
        self.pool = Pool(*(torch.full((len(order) * page_size, *shape), torch.nan) for _ in range(2)))
        self.slots = [
            table[torch.arange(stop) // page_size].long() * page_size + torch.arange(stop) % page_size
            for table, stop in zip(tables, (start + length for start, length in spans), strict=True)
        ]
        for seed, slots in enumerate(self.slots):
            self.pool.keys[slots] = draw(len(slots), *shape, seed=2 * seed)
            self.pool.values[slots] = draw(len(slots), *shape, seed=2 * seed + 1)
        self.new_slots = torch.cat([slots[start:] for slots, (start, _) in zip(self.slots, spans, strict=True)])

    def narrow(self) -> None:
        self.pool = Pool(self.pool.keys.bfloat16(), self.pool.values.bfloat16())

    def expect(self, query: torch.Tensor, rule: Rule) -> torch.Tensor:
        """Compute the attention of each row by itself, in double precision."""
        parts = query.double().split([length for _, length in self.spans])
        return torch.cat([self._expect_row(*row, rule) for row in zip(parts, self.slots, self.spans, strict=True)])

    def _expect_row(self, query: torch.Tensor, slots: torch.Tensor, span: tuple[int, int], rule: Rule) -> torch.Tensor:
        shared = query.shape[1] // self.pool.keys.shape[1]
        keys, values = (
            each[slots].double().repeat_interleave(shared, 1) for each in (self.pool.keys, self.pool.values)
        )
        scores = torch.einsum("qhd,shd->hqs", query, keys) * rule.scale
        if rule.soft_cap:
            scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
        ages = torch.arange(span[0], sum(span))[:, None] - torch.arange(sum(span))
        scores[:, (ages < 0) | (ages >= (rule.window or 1 << 30))] = -torch.inf
        if rule.sinks is not None:
            scores = torch.cat([scores, rule.sinks.double()[:, None, None].expand(-1, len(query), 1)], dim=2)
        return torch.einsum("hqs,shd->qhd", torch.softmax(scores, dim=2)[..., : len(keys)], values)


SPANS = [(0, 1), (15, 1), (16, 1), (31, 2), (0, 33), (5, 0), (17, 40), (700, 1)]
"""Decodes and prefills that end before, at and after the border of a page or a block of keys; one row is empty."""
TOKENS = sum(length for _, length in SPANS)


def test_row_attends_alike_beside_any_others() -> None:
    spans = [(700, 1), (3, 1), (5000, 1), (300, 4), (0, 70)]
    batch, query = Batch(spans), draw(77, 6, 16, seed=9)
    found = attend(query, batch.pool, batch.rows, Rule(0.25)).split([length for _, length in spans])
    for row, mine in enumerate(query.split([length for _, length in spans])):
        offset, start, length = (
            each[row : row + 1] for each in (batch.rows.offsets, batch.rows.starts, batch.rows.lengths)
        )
        rows = Rows(batch.rows.pages, offset, start, length, batch.page_size)
        assert torch.equal(attend(mine, batch.pool, rows, Rule(0.25)), found[row])


@pytest.mark.parametrize("shared", range(1, 9))
def test_attention_sees_what_is_before_it(mode: library.Mode, shared: int) -> None:
    batch, rule = Batch(SPANS), Rule(0.25)
    query = draw(TOKENS, 2 * shared, 16)
    assert torch.allclose(attend(query, batch.pool, batch.rows, rule).double(), batch.expect(query, rule), atol=2e-6)


@pytest.mark.parametrize("dim", [8, 40, 64, 128, 256, 20, 264])  # the last two are not compiled
@pytest.mark.parametrize("narrow", [False, True])
def test_attention_suits_any_width_of_heads(mode: library.Mode, dim: int, narrow: bool) -> None:
    batch = Batch([(40, 1), (3, 21)], shape=(3, dim))
    if narrow:
        batch.narrow()
    query = draw(22, 9, dim)
    rule = Rule(dim**-0.5)
    assert torch.allclose(attend(query, batch.pool, batch.rows, rule).double(), batch.expect(query, rule), atol=3e-6)


@pytest.mark.parametrize(
    "rule",
    [
        Rule(0.25, window=1),
        Rule(0.25, window=16),
        Rule(0.25, window=37),
        Rule(0.25, soft_cap=3.0),
        Rule(0.25, sinks=draw(6) * 5),
        Rule(0.25, window=20, soft_cap=5.0, sinks=draw(6) - 90),
    ],
    ids=["window 1", "window 16", "window 37", "cap", "sinks", "all"],
)
def test_attention_keeps_the_rule(mode: library.Mode, rule: Rule) -> None:
    batch = Batch(SPANS)
    query = draw(TOKENS, 6, 16) * 3
    assert torch.allclose(attend(query, batch.pool, batch.rows, rule).double(), batch.expect(query, rule), atol=3e-6)


def test_attention_reads_no_page_that_a_window_left_behind(mode: library.Mode) -> None:
    batch, rule = Batch([(100, 3)]), Rule(0.25, window=20)
    wanted = batch.expect(draw(3, 6, 16), rule)
    batch.pool.keys[batch.slots[0][:80]] = torch.nan  # the first position seen is 81, on page 5
    shifted = replace(batch.rows, pages=batch.rows.pages[5:].clone(), offsets=batch.rows.offsets - 5)
    assert torch.allclose(attend(draw(3, 6, 16), batch.pool, shifted, rule).double(), wanted, atol=2e-6)


NARROW = [
    Rule(0.25, narrow=True),
    Rule(0.25, window=37, narrow=True),
    Rule(0.25, window=20, soft_cap=5.0, sinks=draw(24) - 1, narrow=True),
]


@pytest.mark.parametrize("isa", ["avx512_bf16"], indirect=True)
@pytest.mark.parametrize("rule", NARROW, ids=["plain", "window", "all"])
@pytest.mark.parametrize("shape", [(8, 16), (3, 8), (3, 64), (6, 40), (2, 96), (1, 128), (1, 256)])
def test_narrow_attention_rounds_queries_and_weights(isa: library.Mode, rule: Rule, shape: tuple[int, int]) -> None:
    batch, query = Batch(SPANS, shape=shape), draw(TOKENS, 24, shape[1])
    batch.narrow()
    found, wide = (attend(query, batch.pool, batch.rows, replace(rule, narrow=each)) for each in (True, False))
    # A query is rounded once, and each weight by at most 2^-9 of itself: so is the average of values, by the largest.
    bound = 2.0**-8 * float(torch.cat([batch.pool.values[slots] for slots in batch.slots]).abs().max())
    assert float((found.double() - batch.expect(query.bfloat16(), rule)).abs().max()) < bound
    assert not torch.equal(found, wide)


@pytest.mark.parametrize("rule", NARROW, ids=["plain", "window", "all"])
def test_row_attends_narrowly_alike_beside_any_others(isa: library.Mode, rule: Rule) -> None:
    spans = [(700, 1), (3, 1), (300, 4), (0, 70), (90, 2)]
    batch, query = Batch(spans, shape=(8, 32)), draw(78, 24, 32, seed=9)
    batch.narrow()
    found = attend(query, batch.pool, batch.rows, rule).split([length for _, length in spans])
    for row, mine in enumerate(query.split([length for _, length in spans])):
        offset, start, length = (
            each[row : row + 1] for each in (batch.rows.offsets, batch.rows.starts, batch.rows.lengths)
        )
        rows = Rows(batch.rows.pages, offset, start, length, batch.page_size)
        assert torch.equal(attend(mine, batch.pool, rows, rule), found[row])


def test_narrow_attention_is_wide_without_instructions_for_it(isa: library.Mode) -> None:
    batch, query = Batch(SPANS), draw(TOKENS, 6, 16)
    narrow, wide = Rule(0.25, narrow=True), Rule(0.25)
    assert torch.equal(attend(query, batch.pool, batch.rows, narrow), attend(query, batch.pool, batch.rows, wide))
    batch.narrow()
    found, expected = (attend(query, batch.pool, batch.rows, rule) for rule in (narrow, wide))
    assert torch.equal(found, expected) == (not isa.endswith("_bf16"))


@pytest.mark.parametrize("size", [1e-30, 1e4, 1e15])
def test_attention_stays_finite_at_extreme_scores(mode: library.Mode, size: float) -> None:
    batch, query = Batch(SPANS), draw(TOKENS, 6, 16) * size
    found = attend(query, batch.pool, batch.rows, Rule(1.0))
    assert found.isfinite().all()
    if size > 1:  # one key has all the weight; where two come close, float32 does not tell them apart
        near = (found.double() - batch.expect(query, Rule(1.0))).abs().amax(-1) < 1e-3
        assert near.double().mean() > 0.99


@settings(max_examples=25, deadline=None)
@given(
    spans=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 40)), min_size=1, max_size=4),
    page_size=st.sampled_from([1, 3, 16, 64]),
    window=st.sampled_from([0, 0, 1, 5, 33]),
    heads=st.tuples(st.integers(1, 3), st.integers(1, 8)),
)
def test_compiled_attention_suits_any_batch(
    spans: list[tuple[int, int]], page_size: int, window: int, heads: tuple[int, int]
) -> None:
    batch, rule = Batch(spans, page_size, (heads[0], 8)), Rule(0.4, window)
    query = draw(sum(length for _, length in spans), heads[0] * heads[1], 8)
    found = attend(query, batch.pool, batch.rows, rule).double()
    assert torch.allclose(found, batch.expect(query, rule), atol=3e-6)


def test_long_sequence_is_shared_out_and_put_together() -> None:
    batch, query = Batch([(3000, 1)], shape=(1, 64)), draw(1, 3, 64)
    rule = Rule(0.125, sinks=draw(3))
    library.set_threads(4)  # more than one split, whatever this machine has
    found = attend(query, batch.pool, batch.rows, rule)
    library.set_threads(library.count_cores())
    assert torch.allclose(found.double(), batch.expect(query, rule), atol=1e-6)


def test_store_rounds_to_the_pool_and_touches_nothing_else(mode: library.Mode) -> None:
    mixed = draw(4, 7, 8)
    mixed[0, 3] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e-40, 3.4e38, 1.00390625, 1.01171875, -0.0])
    for dtype in (torch.float32, torch.bfloat16):
        pool = Pool(torch.full((9, 2, 8), 5, dtype=dtype), torch.full((9, 2, 8), 6, dtype=dtype))
        slots = torch.tensor([8, 0, 3, 5])
        store(pool, mixed[:, 3:5], mixed[:, 5:7], slots)
        assert torch.equal(pool.keys[slots].nan_to_num(7), mixed[:, 3:5].to(dtype).nan_to_num(7))
        assert torch.equal(pool.values[slots], mixed[:, 5:7].to(dtype))
        assert bool((pool.keys[[1, 2, 4, 6, 7]] == 5).all())


def test_shapes_that_do_not_belong_together_are_refused(mode: library.Mode) -> None:
    batch = Batch([(0, 2)])
    for query in (draw(3, 4, 16), draw(2, 3, 16), draw(2, 4, 8)):
        with pytest.raises(ValueError, match=r"queries|tokens"):
            attend(query, batch.pool, batch.rows, Rule(1.0))
    with pytest.raises(ValueError, match="int32"):
        attend(draw(2, 4, 16), batch.pool, replace(batch.rows, starts=batch.rows.starts.long()), Rule(1.0))
    with pytest.raises(ValueError, match="sinks"):
        attend(draw(2, 4, 16), batch.pool, batch.rows, Rule(1.0, sinks=draw(3)))
    with pytest.raises(ValueError, match="do not fit"):
        store(batch.pool, draw(3, 2, 16), draw(3, 2, 16), torch.arange(2))


def make_recipe(kind: linear.WeightKind, *, normed: bool, seed: int = 0) -> layer.Recipe:
    def scale(dim: int, number: int) -> layer.Scaling:
        return layer.Scaling(draw(dim, seed=seed + number) + 1, 1e-5, 0.5)

    return layer.Recipe(
        attention_norm=scale(40, 1),
        into=linear.pack(draw(128, 40, seed=seed + 2), kind, bias=draw(128, seed=seed + 3)),
        back=linear.pack(draw(40, 64, seed=seed + 4), kind),
        mixer_norm=scale(40, 5),
        up=linear.pack(draw(96, 40, seed=seed + 6), kind),
        down=linear.pack(draw(40, 48, seed=seed + 7), kind),
        rule=Rule(0.25, window=50),
        query_norm=scale(16, 8) if normed else None,
        key_norm=scale(16, 9) if normed else None,
        gate="gelu_tanh" if normed else "silu",
    )


def run_parts(recipe: layer.Recipe, hidden: torch.Tensor, pool: Pool, place: layer.StepPositions) -> torch.Tensor:
    def scale(scaling: layer.Scaling | None, x: torch.Tensor) -> torch.Tensor:
        return x if scaling is None else parts.normalize_rms(x, scaling.weight, scaling.eps, scaling.offset)

    mixed = recipe.into.apply(scale(recipe.attention_norm, hidden)).unflatten(1, (-1, 16))
    queries, keys, values = mixed.split((4, 2, 2), dim=1)
    queries, keys = scale(recipe.query_norm, queries), scale(recipe.key_norm, keys)
    for each in (queries, keys):
        parts.rotate_halves(each, place.cos, place.sin)
    store(pool, keys, values, place.slots)
    hidden = recipe.back.apply(attend(queries, pool, place.rows, recipe.rule).flatten(1), hidden)
    return recipe.down.apply(recipe.up.apply_gated(scale(recipe.mixer_norm, hidden), recipe.gate), hidden)


@pytest.mark.parametrize("kind", ["float32", "int4"])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_layers_in_one_call_are_their_parts(kind: linear.WeightKind, normed: bool, count: int) -> None:
    batches, angles, hidden = [Batch(SPANS) for _ in range(count)], draw(TOKENS, 6), draw(TOKENS, 40)
    recipes = [make_recipe(kind, normed=normed, seed=20 * number) for number in range(count)]
    layers = [made for recipe in recipes if (made := layer.fuse_layer(recipe, heads=4, dim=16))]
    pools = [batch.pool for batch in batches]
    copies = [Pool(pool.keys.clone(), pool.values.clone()) for pool in pools]
    place = layer.StepPositions(batches[0].rows, batches[0].new_slots, angles.cos(), angles.sin())
    fused, expected, before = layer.FusedLayers(layers), hidden, hidden.clone()
    for recipe, copy in zip(recipes, copies, strict=True):
        expected = run_parts(recipe, expected, copy, place)
    assert torch.equal(fused.run(hidden, pools, place), expected)
    assert torch.equal(hidden, before)
    for pool, copy in zip(pools, copies, strict=True):
        assert torch.equal(pool.keys.nan_to_num(), copy.keys.nan_to_num())
    assert torch.equal(fused.run(hidden, copies, place), expected)
    with pytest.raises(ValueError, match="as many tokens"):
        fused.run(hidden[:-1], pools, place)
    for wrong in (replace(place, slots=place.slots.int()), replace(place, cos=draw(TOKENS, 9))):
        with pytest.raises(ValueError, match="slots must be contiguous int64, and cos and sin"):
            fused.run(hidden, pools, wrong)


def test_layer_that_does_not_fit_is_left_in_parts(mode: library.Mode) -> None:
    recipe = make_recipe("float32", normed=False)
    assert (layer.fuse_layer(recipe, heads=4, dim=16) is None) == (mode == "off")
    assert layer.fuse_layer(recipe, heads=3, dim=16) is None
    assert layer.fuse_layer(recipe, heads=5, dim=12) is None
