"""Weights in panels give what weights in rows do."""

from __future__ import annotations

import dataclasses

import pytest

from parallax_backend_mlx import panel_weights
from parallax_backend_mlx.panel_weights import MOST_ROWS, WIDTH, PanelEmbedding, PanelLinear
from parallax_backend_mlx.runtime import BLAS, Embedding, Linear, Module, mx
from parallax_backend_mlx.transposed_weights import TransposedWeight, turn_weights


@pytest.fixture
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrange weights as on a processor for which OpenBLAS has kernels for small matrices."""
    monkeypatch.setattr(panel_weights, "BLAS", dataclasses.replace(BLAS, has_small_products=True))


@pytest.mark.parametrize("outputs", [WIDTH, 3 * WIDTH])
@pytest.mark.parametrize("rows", [(1, 1), (1, 3), (8, 1), (2, 5), (1, MOST_ROWS + 1)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_layer_multiplies_by_the_weight(outputs: int, rows: tuple[int, int], *, has_bias: bool) -> None:
    plain = Linear(24, outputs, bias=has_bias)
    x, weight = mx.random.normal((*rows, 24)), plain.weight
    expected = plain(x)
    layer = PanelLinear(plain)
    assert layer(x).shape == (*rows, outputs)
    assert mx.allclose(layer(x), expected, atol=1e-5).item()
    assert mx.array_equal(layer.weight, weight).item()


@pytest.mark.parametrize("tokens", [WIDTH, 2 * WIDTH])
def test_embedding_is_a_table_and_a_head(tokens: int) -> None:
    plain = Embedding(tokens, 24)
    asked, x = mx.array([[0, tokens - 1], [WIDTH // 2, 1]]), mx.random.normal((2, 1, 24))
    rows, logits = plain(asked), plain.as_linear(x)  # type: ignore[no-untyped-call]
    table = PanelEmbedding(plain)
    assert mx.array_equal(table(asked), rows).item()
    assert mx.allclose(table.as_linear(x), logits, atol=1e-5).item()


class Twice(Module):
    """A model that has a layer in two places."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.one = self.other = Linear(24, WIDTH)


@pytest.mark.usefixtures("small_products")
def test_layer_in_two_places_stays_one() -> None:
    model = Twice()
    turn_weights(model)
    assert isinstance(model.one, PanelLinear)
    assert model.one is model.other


@pytest.mark.usefixtures("small_products")
def test_layers_that_panels_do_not_divide_and_other_dtypes_have_none() -> None:
    class Mixed(Module):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.odd = Linear(24, 2 * WIDTH - 1)
            self.half = Linear(24, WIDTH)
            self.half.weight = self.half.weight.astype(mx.bfloat16)

    model = Mixed()
    turn_weights(model)
    assert type(model.odd) is TransposedWeight
    assert type(model.half) is Linear


class OwnHead(Module):
    """A model that multiplies by the weight of its embedding itself, or as the embedding does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.embed_tokens = Embedding(WIDTH, 24)

    def __call__(self, x: mx.array) -> mx.array:
        return x @ self.embed_tokens.weight.T


class UsualHead(OwnHead):
    def __call__(self, x: mx.array) -> mx.array:
        return self.embed_tokens.as_linear(x)  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.usefixtures("small_products")
@pytest.mark.parametrize(("kind", "form"), [(OwnHead, Embedding), (UsualHead, PanelEmbedding)])
def test_embedding_whose_weight_the_model_reads_stays_whole(kind: type[OwnHead], form: type[Embedding]) -> None:
    model = kind()
    turn_weights(model)
    assert type(model.embed_tokens) is form
